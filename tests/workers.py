"""`pytest --workers N` runs the tests in N processes, which are forked from the one that collected them.

Everything is imported and collected once, which takes longer than most test files, and its memory is shared. A worker
takes one file at a time, because the tests of a file may share expensive resources. Files whose tests are marked as
`together` with the same name count as one. Files with tests marked as `long` come first, so that none of them runs on
when the other workers have ended. If a worker dies, the test that it was running fails, and a new worker continues with
the next one.
"""

import multiprocessing
import os
import tempfile
import warnings
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Literal, cast

import pytest

_fork = multiprocessing.get_context("fork")

_Location = tuple[str, int | None, str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=1, metavar="N", help="run the tests in N processes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "together(name): with --workers, all tests of that name are run by one worker")
    if (count := config.getoption("workers")) > 1:
        config.pluginmanager.register(_Workers(config, count))


class _Worker:
    """A worker process, as seen by the process that collected the tests."""

    def __init__(self, process: ForkProcess, connection: "Connection[Any, Any]") -> None:
        self.process = process
        self.connection = connection
        self.left: deque[int] = deque()
        """Numbers of the remaining tests of its file, starting with the current one."""


class _Workers:
    """The plugin, both in the process that collected the tests and in its workers."""

    def __init__(self, config: pytest.Config, count: int) -> None:
        self._config = config
        self._count = count
        self._workers: dict[Connection[Any, Any], _Worker] = {}
        self._parent: Connection[Any, Any] | None = None
        """In a worker, the connection for its reports."""
        self._crashed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or self._config.option.collectonly:
            return None  # pytest's own loop handles this
        self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # shared by all; deleted at the end
        files = files_of(session.items)
        try:
            for _ in range(min(self._count, len(files))):
                self._start(session)
            while self._workers:
                for connection in wait(list(self._workers)):
                    self._hear(session, self._workers[cast("Connection[Any, Any]", connection)], files)
        finally:
            for worker in self._workers.values():
                worker.connection.close()  # the worker ends at its next report
                worker.process.join()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _start(self, session: pytest.Session) -> None:
        ours, its = _fork.Pipe()
        process = _fork.Process(target=self._work, args=(session, its, ours))
        process.start()
        its.close()
        self._workers[ours] = _Worker(process, ours)

    def _hear(self, session: pytest.Session, worker: _Worker, files: deque[deque[int]]) -> None:
        """Handle one message of a worker: about its current test, or a request for another file."""
        try:
            kind, content = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._lose(session, worker, files)
            return
        match kind:
            case "idle":
                over = not files or session.shouldfail or session.shouldstop
                worker.left = deque() if over else files.popleft()
                worker.connection.send(list(worker.left))
            case "report":
                report = self._config.hook.pytest_report_from_serializable(config=self._config, data=content)
                self._config.hook.pytest_runtest_logreport(report=report)
            case "finish":
                worker.left.popleft()
                self._config.hook.pytest_runtest_logfinish(**content)
            case "warning":
                self._config.hook.pytest_warning_recorded.call_historic(kwargs=content | {"location": None})

    def _lose(self, session: pytest.Session, worker: _Worker, files: deque[deque[int]]) -> None:
        """Handle the end of a worker. It is expected if no tests of its file are left."""
        worker.process.join()
        del self._workers[worker.connection]
        if worker.left:
            item = session.items[worker.left.popleft()]
            status = f"the process of this test ended with status {worker.process.exitcode}"
            self._config.hook.pytest_runtest_logreport(report=_failure(item.nodeid, item.location, status))
            if worker.left:
                files.appendleft(worker.left)
            self._start(session)

    def _work(self, session: pytest.Session, parent: "Connection[Any, Any]", ours: "Connection[Any, Any]") -> None:
        """Run test files in a worker until none are left."""
        for other in [ours, *self._workers]:
            other.close()  # inherited copies would hide that the other end was lost
        self._parent = parent
        self._config.pluginmanager.unregister(name="terminalreporter")
        self._capture_apart()
        try:
            while numbers := self._next_file():
                items = [session.items[number] for number in numbers]
                # After its last test, the fixtures of the file end, and those of the session stay.
                for item, following in zip(items, [*items[1:], session], strict=True):
                    self._config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except (KeyboardInterrupt, BrokenPipeError, EOFError):
            pass  # the parent has ended, or is about to
        finally:
            self._tear_down(session)

    def _capture_apart(self) -> None:
        """Redirect the captured output of this process to its own files. The streams stay open, because modules may
        have kept those that they found at import."""
        capture: Any = self._config.pluginmanager.getplugin("capturemanager")
        if self._config.option.capture == "fd":
            for stream in (capture._global_capturing.out, capture._global_capturing.err):
                with tempfile.TemporaryFile() as file:
                    os.dup2(file.fileno(), stream.tmpfile.fileno(), inheritable=False)

    def _next_file(self) -> Sequence[int]:
        """Return the numbers of the tests in the next file, or none at the end."""
        assert self._parent is not None
        self._parent.send(("idle", None))
        numbers: Sequence[int] = self._parent.recv()
        return numbers

    def _tear_down(self, session: pytest.Session) -> None:
        runner = self._config.pluginmanager.getplugin("runner")
        assert runner is not None
        try:
            runner.pytest_sessionfinish(session)
        except Exception as error:
            text = f"{error!r}\n\n{pytest.ExceptionInfo.from_exception(error).getrepr(style='short')}"
            name = multiprocessing.current_process().name
            self._report(_failure(name, (name, None, "the end of the session's fixtures"), text))

    def _report(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        assert self._parent is not None
        self._parent.send(("report", data))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._parent:
            self._report(report)
        self._crashed |= getattr(report, "crashed", False)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell tests that failed from processes that died: no second run of a test excuses these."""
        if self._crashed:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_runtest_logfinish(self, nodeid: str, location: _Location) -> None:
        if self._parent:
            self._parent.send(("finish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: Literal["config", "collect", "runtest"], nodeid: str
    ) -> None:
        if self._parent:
            warning = warnings.WarningMessage(
                str(warning_message.message),
                warning_message.category,
                warning_message.filename,
                warning_message.lineno,
            )
            self._parent.send(("warning", {"warning_message": warning, "when": when, "nodeid": nodeid}))


def files_of(items: Sequence[pytest.Item]) -> deque[deque[int]]:
    """Return the numbers of the tests in each file, in the order in which the workers take them."""
    files: dict[str | Path, deque[int]] = {}
    long = set[str | Path]()
    for number, item in enumerate(items):
        file = _shares_with(item)
        files.setdefault(file, deque()).append(number)
        if item.get_closest_marker("long"):
            long.add(file)
    return deque(files[file] for file in sorted(files, key=lambda file: file not in long))


def _shares_with(item: pytest.Item) -> str | Path:
    """Return what tests for the same worker have in common."""
    mark = item.get_closest_marker("together")
    return str(mark.args[0]) if mark else item.path


def _failure(nodeid: str, location: _Location, text: str) -> pytest.TestReport:
    """Return a failure report for something that no test could report itself."""
    return pytest.TestReport(nodeid, location, {}, "failed", text, "call", crashed=True)
