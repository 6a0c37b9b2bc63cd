"""A child process that behaves like the engine towards its supervisor, and does nothing else.

It obeys the file `orders` in its data directory: with `die at start` it exits with a message before it is ready, and
with `hang at start` it never becomes ready.
"""

import argparse
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Answer(BaseHTTPRequestHandler):
    """Answers every request with an empty list."""

    def do_GET(self) -> None:
        body = json.dumps({"object": "list", "data": []}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


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
    if orders.exists() and orders.read_text() == "hang at start":
        signal.pause()
    assert os.environ[arguments.api_key_env]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    line = json.dumps({"event": "engine child is listening", "level": "info", "threads": 1})
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), _Answer)
    arguments.ready_file.write_text(json.dumps({"port": server.server_port, "pid": os.getpid()}))
    server.serve_forever()


if __name__ == "__main__":
    main()
