"""Where commands write: results on stdout, progress and errors on stderr.

Neither gets control characters unless it is a terminal, so both can be piped and saved.
"""

import json
from datetime import date
from typing import Any

from rich.console import Console
from rich.text import Text

results = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
progress = Console(highlight=False, markup=False, emoji=False, stderr=True)


class Failure(Exception):
    """Ends a command with exit code 1. The message says what failed and how to fix it."""


def print_json(document: Any) -> None:
    """Print the single JSON document of a `--json` command."""
    text = json.dumps(document, indent=2, ensure_ascii=False, default=_plain)
    results.print(text, soft_wrap=True)


def print_deleted(names: list[str], as_json: bool) -> None:
    """Print the names of what a command deleted."""
    if as_json:
        print_json({"deleted": names})
    else:
        results.print(f"deleted {', '.join(names)}")


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def print_failure(message: str) -> None:
    """Print to stderr why the command failed."""
    progress.print(f"learnloop: {message}", style="red", soft_wrap=True)


def plain(text: str, style: str = "") -> Text:
    """Return text by a model or a user for printing, without interpreting markup; control characters become `?`."""
    return Text("".join(c if c.isprintable() or c == "\n" else "?" for c in text), style=style, overflow="fold")
