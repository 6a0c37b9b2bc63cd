"""A child process that behaves like the engine towards whoever supervises it, and does nothing else.

Obeys the file `orders` in its data directory: `die at start` exits with a message before it is ready.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api-key-env", required=True)
    arguments, _ = parser.parse_known_args()
    orders = arguments.data_dir / "orders"
    if orders.exists() and orders.read_text() == "die at start":
        sys.exit("no torch here")
    assert os.environ[arguments.api_key_env]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    line = json.dumps({"event": "engine child is listening", "level": "info", "threads": 1})
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
    arguments.ready_file.write_text(json.dumps({"port": arguments.port or 45_678, "pid": os.getpid()}))
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
