"""Text that others wrote stays text in a terminal, by whatever way it is printed."""

import json
import unicodedata
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.live import Live
from rich.table import Table
from rich.text import Text

from learnloop_service.app.cli.terminal import Failure, Terminal, json_text, plain

HOSTILE = "a\x1b]0;title\x07\x9b31m\u202etxt\ud800 b"
_TEXTS = st.text(st.characters(codec=None), max_size=40)


def _obeyed(text: str) -> set[str]:
    return {c for c in text if (unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t") or c in "\u202e\u2066"}


@given(_TEXTS)
@example(HOSTILE)
def test_nothing_that_is_printed_is_obeyed(text: str) -> None:
    table = Table()
    table.add_column(text)
    table.add_row(Text(text), text)
    for printed in (text, plain(text), Text.assemble("x", (text, "")), table):
        console = Terminal(file=(output := StringIO()), width=60, markup=False, highlight=False, emoji=False)
        console.print(printed)
        console.print(printed, soft_wrap=True, style="red")
        assert not _obeyed(output.getvalue())


class _Screen(StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_file_has_no_styles_and_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    console = Terminal(file=(screen := _Screen()), color_system="standard", width=60)
    file = tmp_path / "deep" / "file.txt"
    with console.into(file):
        console.print("red", style="red")
    console.print("red", style="red")
    assert file.read_text() == "red\n"
    assert screen.getvalue() == "\x1b[31mred\x1b[0m\n"
    with pytest.raises(Failure, match="no service"):
        _fail_half_way(console, file)
    assert {path.name: path.read_text() for path in file.parent.iterdir()} == {"file.txt": "red\n"}
    with pytest.raises(Failure, match=r"cannot write .*: File exists"), console.into(file / "below"):
        pass


def _fail_half_way(console: Terminal, file: Path) -> None:
    with console.into(file):
        console.print("half")
        raise Failure("no service")


def test_a_live_display_is_no_way_around() -> None:
    console = Terminal(file=(output := StringIO()), width=60, force_terminal=True, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        live.update(HOSTILE, refresh=True)
    assert "a?]0;title" in output.getvalue()
    assert "\x1b]0;" not in output.getvalue()
    assert not {"\x9b", "\x07", "\u202e"} & set(output.getvalue())


def test_other_alphabets_are_printed_as_they_are() -> None:
    persian, emoji, wide = (
        "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f469\u200d\U0001f52c",
        "\uff21\u3000\uff22",
    )
    for text in (persian, "\u0915\u094d\u200d\u0937", emoji, wide, "1\u00a0000", "tab\tbed"):
        console = Terminal(file=(output := StringIO()), width=60)
        console.print(plain(text), soft_wrap=True)
        assert output.getvalue().expandtabs() == f"{text}\n".expandtabs()


@given(st.dictionaries(_TEXTS, _TEXTS | st.lists(_TEXTS)))
@example({HOSTILE: [HOSTILE]})
def test_a_json_document_loses_nothing(document: dict[str, Any]) -> None:
    text = json_text(document, indent=2)
    assert json.loads(text) == document
    assert not _obeyed(text)
