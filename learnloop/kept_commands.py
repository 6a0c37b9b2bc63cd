"""Commands that keep running: a process does one task after another, so that it loads its imports once."""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from learnloop.outcome import BadOutcome, Json, is_outcome, parse_outcome

_MAX_LINE_BYTES = 8_000_000
_TAIL_BYTES = 8_000
_GRACE_S = 5.0


class CommandEnded(Exception):
    """The command ended, or printed a line that is too long. The message says how, with the end of its stderr."""


class KeptCommands:
    """Processes of one command, each of which does one task at a time.

    A process reads a line of JSON for each task, an object with the task's variables, and prints the outcome as a line.
    Other lines are ignored.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._idle: list[_CommandProcess] = []

    async def do(self, variables: Mapping[str, str]) -> dict[str, Json]:
        """Have a process do a task, and return the outcome. If this is cancelled, the process is ended.

        Raises CommandEnded, and OSError if the command cannot be started.
        """
        while self._idle and self._idle[-1].process.returncode is not None:
            await self._idle.pop().end()
        process = self._idle.pop() if self._idle else await _CommandProcess.start(self._command, self._environment)
        try:
            outcome = await process.do(variables)
        except BaseException:
            await process.end()
            raise
        self._idle.append(process)
        return outcome

    async def aclose(self) -> None:
        """End all processes."""
        while self._idle:
            await self._idle.pop().end()


class _CommandProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._tail = b""
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read())
        self._draining = asyncio.ensure_future(self._drain())

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> "_CommandProcess":
        pipe: Any = asyncio.subprocess.PIPE
        limit = _MAX_LINE_BYTES
        return cls(
            await asyncio.create_subprocess_exec(
                *command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=limit
            )
        )

    async def do(self, variables: Mapping[str, str]) -> dict[str, Json]:
        assert self.process.stdin is not None
        self._tail = b""
        while not self._lines.empty() and not self._reading.done():  # what it printed after the task before
            self._lines.get_nowait()
        with suppress(ConnectionError):  # it has ended, as its output says next
            self.process.stdin.write(json.dumps(variables).encode() + b"\n")
            await self.process.stdin.drain()
        while line := await self._lines.get():
            if (outcome := outcome_in(line)) is not None:
                return outcome
        if isinstance(self._reading.exception(), ValueError):
            raise CommandEnded(f"the command printed a line of more than {_MAX_LINE_BYTES:,} bytes")
        await asyncio.wait({self._draining}, timeout=_GRACE_S)
        status = await self.process.wait()
        tail = self._tail.decode("utf-8", "replace").strip()
        raise CommandEnded(f"the command ended with status {status} before it printed an outcome: {tail}")

    async def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            while line := await self.process.stdout.readline():
                self._lines.put_nowait(line)
        finally:
            asyncio.get_running_loop().call_soon(self._lines.put_nowait, None)  # when this is done

    async def _drain(self) -> None:
        assert self.process.stderr is not None
        while piece := await self.process.stderr.read(_TAIL_BYTES):
            self._tail = (self._tail + piece)[-_TAIL_BYTES:]

    async def end(self) -> None:
        """End the process and those that it started."""
        await end_group(self.process)
        self._reading.cancel()
        self._draining.cancel()


async def end_group(process: asyncio.subprocess.Process) -> None:
    """End a process that leads a group, and the others of the group."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_S)


def outcome_in(line: str | bytes) -> dict[str, Json] | None:
    """Return the outcome in a line that a command printed, or None if it is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not is_outcome(value):
        return None
    try:
        parse_outcome(value)
    except BadOutcome as error:
        return {"reward": None, "reason": f"the command printed {error}"}
    return dict(value)
