"""The line that stands for an error in a log or a message."""

import re

_MOST = 300
"""Maximum number of characters of a line about a failure."""
_GROUP_MARGIN = re.compile(r"^ *[|+] ?")
"""Left margin of the traceback of an exception group."""


def first_line(error: BaseException) -> str:
    """Return the first line of the error's text, or its type if it has no text."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def last_line(text: str) -> str:
    """Return the line that names the error in what a failed program wrote: the exception of its last Python traceback,
    or otherwise the last line that has a letter or digit."""
    lines = [_GROUP_MARGIN.sub("", line) for line in text.splitlines() if any(map(str.isalnum, line))]
    begins = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    named = [line for line in lines[begins[-1] + 1 :] if not line.startswith(" ")] if begins else []
    last = " ".join((named[0] if named else lines[-1] if lines else text).split())
    return last if len(last) <= _MOST else f"{last[: _MOST - 1]}…"
