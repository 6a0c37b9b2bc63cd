"""Where commands write: results on stdout, progress and errors on stderr.

Neither gets control characters unless it is a terminal, so both can be piped and saved.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from learnloop.errors import without_errno

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and newline, characters that change the direction of text, and lone surrogates."""


class Failure(Exception):
    """Ends a command with exit code 1. The message says what failed and how to fix it."""


class Terminal(Console):
    """Prints text by models, users and services as text: what a terminal would obey becomes `?`, wherever it is.

    Rich's own control codes are not part of a segment's text, and its styles are added after this.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(_UNSAFE.sub("?", segment.text), segment.style)

    @contextmanager
    def into(self, file: Path) -> Iterator[None]:
        """Print to a file instead, without styles. Raises Failure if it cannot be written.

        The file keeps its content if the block raises Failure: until the end, another one in its directory is written.
        """
        unfinished = file.with_name(f".{file.name}.unfinished")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            opened = unfinished.open("w", encoding="utf-8", buffering=1)
        except OSError as error:
            raise Failure(f"cannot write {file}: {error.strerror}") from error
        before = self._file, self._color_system
        self._file, self._color_system = opened, None
        try:
            yield
        except Failure:
            unfinished.unlink()
            raise
        finally:
            self._file, self._color_system = before
            opened.close()
            if unfinished.exists():
                unfinished.replace(file)


_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "fault": "red", "failed": "red"}
results = Terminal(highlight=False, markup=False, emoji=False, soft_wrap=False)
progress = Terminal(highlight=False, markup=False, emoji=False, stderr=True)


@contextmanager
def failing_on(*foreseen: type[Exception]) -> Iterator[None]:
    """Turn foreseen errors of the block into a Failure with the same message."""
    try:
        yield
    except foreseen as error:
        raise Failure(without_errno(str(error))) from error


def print_json(document: Any) -> None:
    """Print the single JSON document of a `--json` command."""
    results.print(json_text(document, indent=2), soft_wrap=True)


def json_text(document: Any, indent: int | None = None) -> str:
    """Return a document as JSON in which characters that a terminal would obey are escaped."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, default=_plain)
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def print_result(document: Any, as_json: bool, *lines: str | Text) -> None:
    """Print what a command found or did, as JSON or as lines."""
    if as_json:
        print_json(document)
    for line in () if as_json else lines:
        say(line)


def starter_of(document: Any) -> str:
    """Return who started something, for the end of a line about it."""
    by = document.get("started_by") or {}  # older services have none
    words = [f"key {by['name']} ({by['id']})"] if by.get("id") else []
    return f", started by {' through '.join([*words, by['order']] if by.get('order') else words)}" if by else ""


def print_finding(state: str, name: str, text: str, remedy: str | None = None, console: Console = results) -> None:
    """Print what an examination found, in the color of its state, and below it what to do about it."""
    line = Text.assemble((f"{state:9}", _STYLES[state]), (name, "bold"), ": ", plain(text))
    console.print(line, soft_wrap=True)
    if remedy is not None:
        console.print(plain(f"{'':9}{remedy}"), soft_wrap=True)


def print_warnings(accepted: Any) -> None:
    """Print the warnings about a request that was accepted."""
    for warning in accepted["warnings"]:
        progress.print(warning, style="yellow", soft_wrap=True)


def print_deleted(names: list[str], as_json: bool) -> None:
    """Print the names of what a command deleted."""
    if as_json:
        print_json({"deleted": names})
    else:
        results.print(f"deleted {', '.join(names)}")


def print_list(
    items: Sequence[Any],
    as_json: bool,
    nothing: str,
    columns: Iterable[Column | str],
    row: Callable[[Any], Iterable[RenderableType]],
) -> None:
    """Print a list as JSON or as a table with a row for each item; `nothing` if it is empty."""
    if as_json:
        print_json(items)
    else:
        results.print(table(columns, map(row, items)) if items else nothing)


def print_versions(versions: Sequence[Any], as_json: bool, nothing: str, counted: str) -> None:
    """Print versions of stored documents as `print_list` does; `counted` heads the number of what they hold."""

    def row(stored: Any) -> tuple[str, ...]:
        version, count = str(stored["version"]), str(stored["count"])
        return stored["name"], version, count, stored["created_at"][:10], stored["sha256"][:12]

    print_list(versions, as_json, nothing, ("name", "version", counted, "stored", "sha256"), row)


def table(columns: Iterable[Column | str], rows: Iterable[Iterable[RenderableType]]) -> Table:
    """Return a table without lines."""
    grid = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*row)
    return grid


def whole(heading: str, min_width: int | None = None) -> Column:
    """Return a column of a table that stays on one line."""
    return Column(heading, no_wrap=True, min_width=min_width)


def number(heading: str) -> Column:
    """Return a column of a table with figures."""
    return Column(heading, no_wrap=True, justify="right")


def folded(heading: str) -> Column:
    """Return a column of a table in which also long words are folded."""
    return Column(heading, overflow="fold")


def say(text: str | Text, style: str = "") -> None:
    """Print a line of results, however long it is."""
    results.print(text, style=style, soft_wrap=True)


def confirm(question: str, fact: str) -> None:
    """Ask whether to continue. Without a terminal, raises Failure with the fact instead."""
    if not progress.is_terminal:
        raise Failure(f"{fact}; confirm with --yes")
    typer.confirm(question, abort=True, err=True)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def print_failure(message: str) -> None:
    """Print to stderr why the command failed."""
    progress.print(f"learnloop: {message}", style="red", soft_wrap=True)


def plain(text: str, style: str = "") -> Text:
    """Return text by a model or a user for printing, without interpreting markup, and folded at the terminal's edge."""
    return Text(text, style=style, overflow="fold")
