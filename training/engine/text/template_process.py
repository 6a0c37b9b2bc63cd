"""Renders chat templates that others made, in a child process with limits; see render_templates.py.

A template is a program: it can loop for ever, or build gigabytes of text in one operation, in a thread that nothing can
end. The child can be ended, and it starts again with the next conversation.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from learnloop_service.environment.json_type import Json
from learnloop_service.training.bases.child_processes import child_environment

RENDER_S = 2.0
"""Processor time that rendering can take for one call, in seconds."""
RENDER_MESSAGE_S = 0.05
"""Additional time for each message, because a long conversation is rendered once for each reply in it."""
RENDER_BYTES = 1 << 30
"""Memory that rendering can take, in bytes."""
RENDER_CHARACTERS = 16 << 20
"""Longest rendered text, in characters: twice the largest request."""
_WALL_FACTOR = 20.0
"""Wall time per second of processor time after which the child is ended. It allows for a busy machine."""
_START_WALL_S = 120.0
_AT_ONCE = 4
"""Conversations of one template that are rendered at the same time, if there are as many cores."""
_PART_BYTES = 1 << 16
_SCRIPT = Path(__file__).with_name("render_templates.py")


class TemplateFailed(Exception):
    """The template refuses the conversation, or rendering it exceeds a limit."""


class Allowance:
    """Processor time that is left for the rendering of one call, in seconds."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds


_allowance: ContextVar[Allowance | None] = ContextVar("render_allowance", default=None)


@contextlib.contextmanager
def render_allowance(messages: int) -> Iterator[None]:
    """Limit the time that the block spends on rendering a conversation of that many messages."""
    token = _allowance.set(Allowance(RENDER_S + RENDER_MESSAGE_S * messages))
    try:
        yield
    finally:
        _allowance.reset(token)


class TemplateProcess:
    """The processes of one template, started when needed. Thread-safe; each renders one conversation after another."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._turns = threading.BoundedSemaphore(min(_AT_ONCE, os.cpu_count() or 1))
        self._idle: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _end, self._idle)

    def render(
        self, messages: Json, tools: Json, special: Mapping[str, str], options: Mapping[str, Json], *, reply: bool
    ) -> str:
        """Render a conversation with the fields of TemplateOptions. Raises TemplateFailed."""
        allowed = _allowance.get() or Allowance(RENDER_S)
        if allowed.left <= 0:
            raise TemplateFailed(_TOO_LONG)
        request = {"messages": json.dumps(messages), "tools": json.dumps(tools), "reply": reply}
        line = json.dumps({**request, "special": special, "options": options, "seconds": allowed.left})
        with self._turns:
            answer = self._ask(line, allowed.left)
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        allowed.left -= answer["seconds"]
        return str(answer["text"])

    def _ask(self, line: str, seconds: float) -> dict[str, Any]:
        for last in (False, True):
            process = self._idle.pop() if self._idle else self._start()
            written = _exchange(process, line, _START_WALL_S + _WALL_FACTOR * seconds)
            if written:
                self._idle.append(process)
                answer: dict[str, Any] = json.loads(written)
                return answer
            with process:  # waits for it, and closes its pipes
                pass
            ended = process.returncode
            if ended == -signal.SIGPROF:
                raise TemplateFailed(_TOO_LONG)
            if ended != -signal.SIGALRM or last:
                raise TemplateFailed(f"the process that renders it ended with status {ended}")
        raise AssertionError("unreachable")

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            (sys.executable, "-I", str(_SCRIPT), str(RENDER_BYTES), str(RENDER_CHARACTERS)),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
        )
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps({'template': self._template})}\n".encode())
        os.set_blocking(process.stdin.fileno(), False)
        return process


def _exchange(process: "subprocess.Popen[bytes]", line: str, wall_s: float) -> bytes:
    """Send a line and return the answer, or nothing if the process ends, as it does after that time.

    Waiting is left to the kernel: a thread that watched the time would have to be given the interpreter for each line,
    which takes longer than the rendering if another thread computes.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    source, target = process.stdout.fileno(), process.stdin.fileno()
    unsent, answer, end = memoryview(f"{line}\n".encode()), bytearray(), time.monotonic() + wall_s
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(target, select.POLLOUT)
    while not answer.endswith(b"\n"):
        ready = dict(poll.poll(1_000 * max(0.0, end - time.monotonic())))
        if not ready:
            process.kill()
            end += _START_WALL_S
        if target in ready:
            with contextlib.suppress(BrokenPipeError):
                unsent = unsent[os.write(target, unsent) :]
            if not unsent or ready[target] & select.POLLERR:
                poll.unregister(target)
        if source in ready:
            part = os.read(source, _PART_BYTES)
            if not part:
                return b""
            answer += part
    return bytes(answer)


_TOO_LONG = "rendering it takes too long"


def _end(processes: "list[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        process.kill()
        process.wait()


_processes: "weakref.WeakValueDictionary[str, TemplateProcess]" = weakref.WeakValueDictionary()
_processes_lock = threading.Lock()


def template_process(template: str) -> TemplateProcess:
    """Return the processes of a template, which all tokenizers with the template share."""
    with _processes_lock:
        processes = _processes.get(template)
        if processes is None:
            processes = _processes[template] = TemplateProcess(template)
        return processes
