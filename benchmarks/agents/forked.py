"""Agents in Python whose libraries are imported once: a process that has imported one is forked for each task.

`python -m benchmarks.agents.forked SOCKET MODULE` is that process. `command(SOCKET)` is started in its place: it
hands over its environment and its output, so the agent notices nothing.
"""

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

_OUTPUTS = (1, 2)


def command(path: Path) -> tuple[str, ...]:
    """Without site-packages: it starts in a few milliseconds."""
    return (sys.executable, "-IS", __file__, str(path))


def wait_for(path: Path) -> None:
    """Until agents can be forked."""
    while not path.exists():
        time.sleep(0.01)


def _serve(path: Path, module: str) -> None:
    agent = import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks for the copies' exit statuses
    unready = path.with_suffix(".unready")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(unready))
        listening.listen(128)
        unready.rename(path)
        while True:
            asking, _ = listening.accept()
            with asking:
                if os.fork() == 0:
                    listening.close()
                    status = _run(asking, agent.main)
                    asking.sendall(str(status).encode())
                    os._exit(status)


def _run(asking: socket.socket, main: Callable[[], None]) -> int:
    _, outputs, _, _ = socket.recv_fds(asking, 1, len(_OUTPUTS))
    for ours, given in zip(_OUTPUTS, outputs, strict=True):
        os.dup2(given, ours)
        os.close(given)
    with asking.makefile("rb") as environment:
        os.environ.update(json.load(environment))
    try:
        main()
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _ask(path: str) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [b"-"], _OUTPUTS)
        server.sendall(json.dumps(dict(os.environ)).encode())
        server.shutdown(socket.SHUT_WR)
        return int(server.recv(16) or b"1")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(_ask(sys.argv[1]))
    _serve(Path(sys.argv[1]), sys.argv[2])
