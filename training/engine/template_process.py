"""Renders chat templates that others made, in a child process with limits; see render_templates.py.

A template is a program: it can loop for ever, or build gigabytes of text in one operation, in a thread that nothing can
end. The child can be ended, and it starts again with the next conversation.
"""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from environment.json_type import Json
from training.engine.base_check import child_environment

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
    """The process of one template, started when needed. Thread-safe; conversations are rendered one after another."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def render(
        self, messages: Json, tools: Json, special: Mapping[str, str], options: Mapping[str, Json], *, reply: bool
    ) -> str:
        """Render a conversation with the fields of TemplateOptions. Raises TemplateFailed."""
        allowed = _allowance.get() or Allowance(RENDER_S)
        if allowed.left <= 0:
            raise TemplateFailed(_TOO_LONG)
        request = {"messages": json.dumps(messages), "tools": json.dumps(tools), "reply": reply}
        line = json.dumps({**request, "special": special, "options": options, "seconds": allowed.left})
        with self._lock:
            answer = self._ask(line, allowed.left)
        if "error" in answer:
            raise TemplateFailed(answer["error"])
        allowed.left -= answer["seconds"]
        return str(answer["text"])

    def _ask(self, line: str, seconds: float) -> dict[str, Any]:
        for last in (False, True):
            process = self._process = self._process or self._start()
            written, ended = self._exchange(process, line, _START_WALL_S + _WALL_FACTOR * seconds)
            if written:
                answer: dict[str, Any] = json.loads(written)
                return answer
            self._process = None
            if ended == -signal.SIGPROF:
                raise TemplateFailed(_TOO_LONG)
            if ended != -signal.SIGALRM or last:
                raise TemplateFailed(f"the process that renders it ended with status {ended}")
        raise AssertionError("unreachable")

    @staticmethod
    def _exchange(process: "subprocess.Popen[str]", line: str, wall_s: float) -> tuple[str, int | None]:
        """Return the answer, or an empty text and the status of a process that ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(wall_s, process.kill)
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(line + "\n")
                process.stdin.flush()
            written = process.stdout.readline()
            return written, None if written else process.wait()
        finally:
            timer.cancel()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            (sys.executable, "-I", str(_SCRIPT), str(RENDER_BYTES), str(RENDER_CHARACTERS)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=child_environment(),
        )
        weakref.finalize(self, _end, process)
        assert process.stdin is not None
        process.stdin.write(json.dumps({"template": self._template}) + "\n")
        return process


_TOO_LONG = "rendering it takes too long"


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()


_processes: "weakref.WeakValueDictionary[str, TemplateProcess]" = weakref.WeakValueDictionary()
_processes_lock = threading.Lock()


def template_process(template: str) -> TemplateProcess:
    """Return the process of a template, which all tokenizers with the template share."""
    with _processes_lock:
        found = _processes.get(template)
        if found is None:
            found = _processes[template] = TemplateProcess(template)
        return found
