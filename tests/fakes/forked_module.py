"""`python -m MODULE` without its imports: a fork of a process that has them replaces a new interpreter.

    with ForkedModule("learnloop_service.app.cli", "learnloop_service.app.main") as learnloop:
        subprocess.run(learnloop.command("serve"))

The command is an interpreter that starts in a few milliseconds, hands its arguments, environment, directory and files
to the fork, forwards signals, and ends as the fork does. If it is killed, so is the fork.

A fork starts services and engines of its own as further forks: its `sys.executable` is the script `python` below, which
tests can use too.
"""

import json
import os
import selectors
import shlex
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

_FILES = (0, 1, 2)
_PASSED_ON = (signal.SIGTERM, signal.SIGINT)
_SERVICE, _ENGINE = "learnloop_service.app.cli", "learnloop_service.training.engine"
_REAL = sys.executable
_PYTHON = """#!/bin/sh
case "$*" in
  -P\\ -m\\ {service}\\ *) shift 2; exec {stand_in} "$@" ;;
  -m\\ {service}\\ * | -m\\ {engine}\\ *) shift; exec {stand_in} "$@" ;;
esac
exec {python} "$@"
"""


class ForkedModule:
    """The process to fork; a context manager that ends it. `preloaded` are further modules that it imports."""

    def __init__(self, module: str, *preloaded: str) -> None:
        from multiprocessing import get_context

        self._module = module
        self._directory = tempfile.TemporaryDirectory(prefix="forked-")
        path = Path(self._directory.name, "socket")
        self.python = path.with_name("python")
        """An interpreter whose services and engines are forks, and everything else a process as usual."""
        words = {"stand_in": shlex.join(self.run_module), "python": _REAL, "service": _SERVICE, "engine": _ENGINE}
        self.python.write_text(_PYTHON.format(**words))
        self.python.chmod(0o755)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen(128)
        self._process = get_context("forkserver").Process(
            target=_serve, args=(listening, (module, *preloaded), str(self.python)), daemon=True
        )
        self._process.start()
        listening.close()

    def command(self, *arguments: str) -> list[str]:
        return [*self.run_module, self._module, *arguments]

    @property
    def run_module(self) -> list[str]:
        """The command line that stands for `python -m`: the name of any module, and its arguments, follow."""
        return [_REAL, "-IS", __file__, f"{self._directory.name}/socket"]

    def __enter__(self) -> "ForkedModule":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, but not its forks."""
        self._process.kill()
        self._process.join()
        self._directory.cleanup()


def _serve(listening: socket.socket, modules: Sequence[str], python: str) -> None:
    from importlib import import_module
    from multiprocessing import parent_process

    for name in modules:
        import_module(name)
    sys.executable = python
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a fork reports its exit status itself
    parent = parent_process()
    assert parent is not None
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        selector.register(parent.sentinel, selectors.EVENT_READ)
        while all(key.fileobj is listening for key, _ in selector.select()):
            asking, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                os._exit(_run(asking))
            asking.close()


def _run(asking: socket.socket) -> int:
    """Run the module in the fork, as a new interpreter would, and return the exit status."""
    import atexit
    import runpy
    import traceback

    atexit._clear()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    state = _take_over(asking)
    os.chdir(state["directory"])
    os.environ.clear()
    os.environ.update(state["environment"])
    _look_for_packages(os.environ.get("PYTHONPATH", ""))
    sys.argv = state["arguments"]
    if sys.argv[0] == _ENGINE:  # the service waits until the process that it started is ready
        os.getpid = lambda: int(state["process"])
    sys.modules.pop(sys.argv[0], None)
    status = 0
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as an interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    with suppress(OSError):
        asking.sendall(bytes([status & 255]))
    return status & 255


def _take_over(asking: socket.socket) -> dict[str, Any]:
    """Take over the files, and return the rest of the process state. This process then dies with the requesting one."""
    _, files, _, _ = socket.recv_fds(asking, 1, len(_FILES))
    for ours, file in zip(_FILES, files, strict=True):
        os.dup2(file, ours)
        os.close(file)
    with asking.makefile("rb") as lines:
        described = json.loads(lines.readline())
    asking.sendall(os.getpid().to_bytes(4))

    process = os.getpid()

    def end_with_it() -> None:
        asking.recv(1)
        os.kill(process, signal.SIGKILL)

    threading.Thread(target=end_with_it, daemon=True).start()
    return dict(described)


def _look_for_packages(path: str) -> None:
    """Look for packages in these folders too, as a new interpreter would."""
    from importlib import invalidate_caches

    from learnloop_service.environment import plugins

    if folders := [folder for folder in path.split(os.pathsep) if folder and folder not in sys.path]:
        sys.path[:0] = folders
        invalidate_caches()
        plugins.registered.cache_clear()


def _stand_for(path: str, arguments: Sequence[str]) -> int:
    """Stand in for the fork, in the interpreter that was started, and return the fork's exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    with socket.socket(socket.AF_UNIX) as copy:
        copy.connect(path)
        socket.send_fds(copy, [b"-"], _FILES)
        described = {
            "arguments": arguments,
            "environment": dict(os.environ),
            "directory": str(Path.cwd()),
            "process": os.getpid(),
        }
        copy.sendall(json.dumps(described).encode() + b"\n")
        pid = int.from_bytes(copy.recv(4))
        last = signal.SIGKILL

        def pass_on(number: int, _: object) -> None:
            nonlocal last
            last = signal.Signals(number)
            with suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in _PASSED_ON:
            signal.signal(number, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        if status := copy.recv(1):
            return status[0]
    if last != signal.SIGKILL:
        signal.signal(last, signal.SIG_DFL)
    os.kill(os.getpid(), last)
    raise AssertionError("unreachable")


if __name__ == "__main__":
    sys.exit(_stand_for(sys.argv[1], sys.argv[2:]))
