"""The output of a vLLM process. Its warnings and errors are logged, and its first errors explain why it ended."""

import asyncio
import re
from collections import deque

import structlog

vllm_log = structlog.get_logger("vllm")

_LOGGED = 100
"""Maximum number of lines to log per process. vLLM prints a stack trace for each lost request, from each of its
processes."""
_LENGTH = 500
_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception): .+")
_STACK = re.compile(r"\] *(?:$|Traceback|File|\^| )")


class Output:
    """Collects the output of one process."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=5)
        self._errors: dict[str, None] = {}  # distinct errors; the first ones caused the others
        self._logged = 0

    @property
    def why(self) -> str:
        """The process's explanation of its end, for error messages."""
        return "It said: " + (" | ".join(list(self._errors)[:3] or self._last) or "nothing")

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read the stream to its end."""
        buffer = b""
        while chunk := await stream.read(65_536):
            *lines, buffer = (buffer[-65_536:] + chunk).split(b"\n")
            for line in lines:
                self._note(line.decode(errors="replace").strip()[:_LENGTH])

    def _note(self, line: str) -> None:
        if not line:
            return
        self._last.append(line)
        # Warnings can mention errors that might happen later, such as too many open files if the limit is low.
        if " WARNING " not in line and (match := _ERROR.search(line)):
            self._errors.setdefault(match[0])
        if (" WARNING " in line or " ERROR " in line) and not _STACK.search(line):
            self._logged += 1
            if self._logged <= _LOGGED:
                vllm_log.warning(line)
