"""Claims tasks of runs, runs a command for each of them, and reports the outcomes."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from learnloop.errors import LearnloopError, why_unreachable
from learnloop.http_settings import http_settings, spare_loopback
from learnloop.kept_commands import CommandEnded, KeptCommands, end_group, outcome_in
from learnloop.outcome import Json

_WAIT_S = 20.0
_LEASE_S = 30.0
_HEARTBEAT_S = 8.0
_PAUSE_S = 2.0
_IDLE_S = 60.0
_TAIL_CHARACTERS = 2_000
_MAX_OUTPUT_BYTES = 8_000_000
_PIECE_BYTES = 65_536
_MAX_PIECES = 16
"""Most pieces that are read without a pause: 1 MiB, the most that a pipe holds by default."""
_FLUSH_S = 2.0
"""How long the rest of a command's output can take after its end, for example through `tee`."""
_LOST = "another worker has it, or it is over"
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""Variables that any command needs: to find programs and its home directory, and for the encoding, the time zone and
temporary files."""


class CannotWork(LearnloopError):
    """The worker cannot do any task; the message says why."""


class CommandFailed(Exception):
    """The command ended with an error, perhaps because the service was unavailable. The next attempt continues from the
    recorded answers."""


@dataclass
class AgentWorker:
    """Works on up to `concurrency` tasks at the same time."""

    url: str
    command: Sequence[str]
    environment: Mapping[str, str]
    """Environment of the command, in addition to `variables` of its task."""
    run_id: str | None
    concurrency: int
    name: str
    once: bool
    keep: bool = False
    """Whether a process does one task after another (`KeptCommands`)."""

    async def work(self) -> None:
        """Work on tasks until cancelled; then running commands end, and their tasks are given back.

        Raises CannotWork if the URL is not valid, and later in an ExceptionGroup.
        """
        try:
            settings = http_settings(self.url, None, _WAIT_S + 15)
        except ValueError as error:
            raise CannotWork(str(error)) from error
        async with (
            httpx.AsyncClient(**settings) as self._http,
            aclosing(KeptCommands(self.command, self.environment)) as self._kept,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(self.concurrency):
                group.create_task(self._work_slot())

    async def _work_slot(self) -> None:
        idle_since = time.monotonic()
        while True:
            claim = await self._claim()
            if claim is not None:
                await self._run_task(claim)
                idle_since = time.monotonic()
            elif self.once and time.monotonic() - idle_since > _IDLE_S:
                return

    async def _claim(self) -> Json | None:
        """Claim a task, or return None if there is none or the service is unavailable. Raises CannotWork if the service
        refuses."""
        body = {"worker": self.name, "wait_s": _WAIT_S, "lease_s": _LEASE_S}
        body |= {} if self.run_id is None else {"run_id": self.run_id}
        try:
            response = await self._http.post("/sessions/claims", json=body)
        except httpx.TransportError as error:
            _report(f"no service is reachable at {self.url}: {why_unreachable(error)}; trying again")
            await asyncio.sleep(_PAUSE_S)
            return None
        if response.status_code == httpx.codes.NO_CONTENT:
            return None
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR or response.status_code == 429:
            await asyncio.sleep(_PAUSE_S)
            return None
        if response.is_error:
            raise CannotWork(f"the service refuses to give tasks ({response.status_code}): {response.text[:500]}")
        return response.json()

    async def _run_task(self, claim: Json) -> None:
        id, attempt = claim["session"]["id"], claim["attempt"]
        beating = asyncio.ensure_future(self._beat(id, attempt))
        finishing = asyncio.ensure_future(self._outcome(claim))
        try:
            await asyncio.wait({beating, finishing}, return_when=asyncio.FIRST_COMPLETED)
            if finishing.done():
                status = await self._send(f"/sessions/{id}/outcome", {**finishing.result(), "attempt": attempt})
                ending = _LOST if status == httpx.codes.CONFLICT else "done"
                _report(f"{claim['scenario_id']} (session {id}): {ending}")
            else:
                _report(f"{claim['scenario_id']} (session {id}): {_LOST}")
        except CommandFailed as failed:
            await self._give_back(id, attempt, str(failed))
            _report(f"{claim['scenario_id']} (session {id}): {failed}")
            await asyncio.sleep(_PAUSE_S)  # the cause may pass
        except asyncio.CancelledError:
            with suppress(httpx.HTTPError):
                await self._http.post(f"/sessions/{id}/release", json={"attempt": attempt})
            raise
        finally:
            beating.cancel()
            finishing.cancel()
            await asyncio.wait({finishing})

    async def _outcome(self, claim: Mapping[str, Json]) -> dict[str, Json]:
        """Have the command do the task. It has ended when this is cancelled. Raises CommandFailed, CannotWork."""
        with prompt_files(claim.get("prompt") or {}) as prompt:
            return await self._outcome_of_command(claim, {**variables(claim), **prompt})

    async def _outcome_of_command(self, claim: Mapping[str, Json], task: Mapping[str, str]) -> dict[str, Json]:
        """Have the command do the task that the variables describe. Raises CommandFailed, CannotWork."""
        try:
            if self.keep:
                return await self._kept.do(task)
            command = await self._start_command(task)
        except CommandEnded as ended:
            raise CommandFailed(str(ended)) from ended
        except OSError as error:
            attempt, reason = claim["attempt"], f"{self.command[0]} cannot be started: {error}"
            await self._http.post(
                f"/sessions/{claim['session']['id']}/release", json={"attempt": attempt, "reason": reason}
            )
            raise CannotWork(reason) from error
        try:
            return await _result(command)
        finally:
            await _end_process(command)

    async def _start_command(self, task: Mapping[str, str]) -> "_Command":
        stdout, stderr = _Output(), _Output()
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command,
                env={**self.environment, **task},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout.writer,
                stderr=stderr.writer,
                start_new_session=True,
            )
        except OSError:
            stdout.close()
            stderr.close()
            raise
        finally:
            os.close(stdout.writer)
            os.close(stderr.writer)
        return _Command(process, stdout, stderr)

    async def _beat(self, id: str, attempt: int) -> None:
        """Renew the lease until the claim is lost. If the service is unreachable, the command keeps running."""
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            with suppress(httpx.TransportError):
                beat = {"attempt": attempt, "lease_s": _LEASE_S}
                response = await self._http.post(f"/sessions/{id}/heartbeat", json=beat)
                if response.status_code in (403, 404, 409):
                    return

    async def _give_back(self, id: str, attempt: int, reason: str) -> None:
        """Give a task back after its command failed. If the reason cannot be delivered, the service was probably the
        cause, and the task is given back without one, which does not count against it."""
        path = f"/sessions/{id}/release"
        if await self._try_send(path, {"attempt": attempt, "reason": reason}) is None:
            await self._send(path, {"attempt": attempt})

    async def _send(self, path: str, body: Mapping[str, Json]) -> int:
        """Post the body, repeat it until the service accepts or refuses it, and return the status of its answer."""
        while (status := await self._try_send(path, body)) is None:
            await asyncio.sleep(_PAUSE_S)
        return status

    async def _try_send(self, path: str, body: Mapping[str, Json]) -> int | None:
        """Post the body, and return the status of the answer, or None if the service could not take it now. The service
        refuses a body if the session is no longer ours, for example because the command has sent an outcome itself."""
        with suppress(httpx.TransportError):
            response = await self._http.post(path, json=dict(body))
            if response.status_code < 500 and response.status_code != 429:
                return response.status_code
        return None


def _report(line: str) -> None:
    """Print what happened to stderr. Control characters of a command or a service become `?`."""
    sys.stderr.write("".join(c if c.isprintable() or c == "\n" else "?" for c in line) + "\n")
    sys.stderr.flush()


def passed_on(named: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of our environment that a command inherits. Our keys are not among them unless named.

    An entry of `named` is NAME, which takes our value, or NAME=VALUE. Raises CannotWork.
    """
    passed = {name: environment[name] for name in _INHERITED if name in environment}
    for entry in named:
        name, has_value, value = entry.partition("=")
        if not name:
            raise CannotWork(f"--env {entry}: expected NAME or NAME=VALUE")
        if not has_value and name not in environment:
            raise CannotWork(
                f"--env {name}: the environment has no {name}; set it, or give its value: --env {name}=VALUE"
            )
        passed[name] = value if has_value else environment[name]
    spare_loopback(passed)
    return passed


def variables(claim: Mapping[str, Json]) -> dict[str, str]:
    """Return the environment variables that describe a task to the command."""
    session = claim["session"]
    return {
        "OPENAI_BASE_URL": session["base_url"],
        "OPENAI_API_KEY": session["api_key"],
        "OPENAI_MODEL": session["model"],
        "ANTHROPIC_BASE_URL": session["base_url"].removesuffix("/v1"),
        "ANTHROPIC_API_KEY": session["api_key"],
        "ANTHROPIC_MODEL": session["model"],
        "LEARNLOOP_TASK": json.dumps(claim["task"], ensure_ascii=False),
        "LEARNLOOP_SESSION": session["id"],
        "LEARNLOOP_ATTEMPT": str(claim["attempt"]),
        "LEARNLOOP_DEADLINE": claim["deadline"],
    }


@contextmanager
def prompt_files(prompt: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Write the parts of a prompt to files in a temporary folder, and yield the variables that tell the command of
    them; none without a prompt. Raises CommandFailed for a part whose name leads out of the folder."""
    if not prompt:
        yield {}
        return
    with TemporaryDirectory(prefix="learnloop-prompt-") as folder:
        write_parts(prompt, Path(folder))
        yield {"LEARNLOOP_PROMPT": json.dumps(dict(prompt), ensure_ascii=False), "LEARNLOOP_PROMPT_DIR": folder}


def write_parts(prompt: Mapping[str, str], folder: Path) -> None:
    """Write the parts of a prompt to files in a folder. Raises CommandFailed for a part whose name leads out of it."""
    for name, text in prompt.items():
        path = folder / part_path(name)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise CommandFailed(f"the prompt's part {name!r} leads out of its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def part_path(name: str) -> str:
    """Return the file of a prompt's part: `system.txt`, `tool/search.txt` or, of `file:AGENTS.md`, `AGENTS.md`."""
    kind, _, rest = name.partition(":")
    return rest if kind == "file" else f"{kind}/{rest}.txt" if rest else f"{kind}.txt"


class _Output:
    """What a command writes to a pipe: the last `_MAX_OUTPUT_BYTES` of it.

    The pipe is ours, not asyncio's, because a process of asyncio ends only when its pipes do, and a child that the
    command left running, such as a server, holds them.
    """

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._tail = bytearray()
        self.ended = asyncio.Event()
        """Set once no process can write any more."""
        asyncio.get_running_loop().add_reader(self._reader, self.read)

    def read(self) -> None:
        """Take what has been written."""
        with suppress(BlockingIOError):
            for _ in range(0 if self.ended.is_set() else _MAX_PIECES):
                piece = os.read(self._reader, _PIECE_BYTES)
                if not piece:
                    return self.close()
                self._tail += piece
                del self._tail[:-_MAX_OUTPUT_BYTES]

    def text(self) -> str:
        """Return what has been read so far."""
        return self._tail.decode("utf-8", "replace")

    def close(self) -> None:
        """Stop reading. A process that still writes gets a broken pipe."""
        if not self.ended.is_set():
            self.ended.set()
            asyncio.get_running_loop().remove_reader(self._reader)
            os.close(self._reader)


@dataclass(frozen=True, slots=True)
class _Command:
    process: asyncio.subprocess.Process
    stdout: _Output
    stderr: _Output


async def _result(command: _Command) -> dict[str, Json]:
    """Wait for the command's end, not for what it left running, and return its outcome. Raises CommandFailed."""
    stdout, stderr = command.stdout, command.stderr
    status = await command.process.wait()
    stdout.read()
    stderr.read()
    printed = stdout.text()
    if status or outcome_in(_last_line(printed)) is None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await stdout.ended.wait()
                await stderr.ended.wait()
        if stdout.ended.is_set() or not _last_line(printed):
            printed = stdout.text()  # otherwise, what came since can be a server's
    return outcome_of(status, printed, stderr.text())


def outcome_of(status: int, stdout: str, stderr: str) -> dict[str, Json]:
    """Return the outcome that a command printed last, or a reason why there is none. Raises CommandFailed."""
    if status:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        raise CommandFailed(f"the command ended with {how}: {stderr.strip()[-_TAIL_CHARACTERS:]}")
    line = _last_line(stdout)
    if not line:
        return {"reward": None, "reason": "the command printed nothing"}
    outcome = outcome_in(line)
    return {"output": line} if outcome is None else outcome


def _last_line(text: str) -> str:
    """Return the last line that is not blank, or an empty string. Only LF and CRLF end a line: JSON can hold U+2028 and
    U+0085, where splitlines() would cut."""
    trimmed = text.rstrip()
    return trimmed and text[trimmed.rfind("\n") + 1 :].partition("\n")[0].removesuffix("\r")


async def _end_process(command: _Command) -> None:
    """End the command and the processes that it started."""
    try:
        await end_group(command.process)
    finally:
        command.stdout.close()
        command.stderr.close()
