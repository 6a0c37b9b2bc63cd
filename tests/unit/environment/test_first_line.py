"""An error is said in one line, even one without a text."""

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.first_line import first_line, last_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such table\nLINE 1: SELECT"), "no such table"),
        (OSError("\n\n the disk is full \r\nsee the log"), "the disk is full "),
        (TimeoutError(), "TimeoutError"),
        (ConnectionResetError(" \n "), "ConnectionResetError"),
    ],
)
def test_an_error_is_described_in_one_line(error: Exception, line: str) -> None:
    assert first_line(error) == line


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def traced(error: Exception) -> str:
    return "".join(traceback.format_exception(raised(error)))


SEVERAL_LINES = ValueError("2 errors for Answer\nsources\n  Field required\n    For further information visit a page")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"the command ended with status 1: {traced(KeyError('OPENAI_MODEL'))}", "KeyError: 'OPENAI_MODEL'"),
        (f"{traced(SEVERAL_LINES)}sys:1: RuntimeWarning: never awaited", "ValueError: 2 errors for Answer"),
        (traced(ExceptionGroup("several", [KeyError("a"), raised(ValueError("b"))])), "ValueError: b"),
        ("npm ERR!\nError: no key  given\n\n}\n", "Error: no key given"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("…", "…"),
        ("x" * 400, "x" * 299 + "…"),
    ],
)
def test_a_failure_is_described_by_the_line_that_names_it(text: str, line: str) -> None:
    assert last_line(text) == line


@given(st.text())
def test_any_text_gives_one_line(text: str) -> None:
    assert len(last_line(text)) <= 300
    assert len(last_line(text).splitlines()) <= 1
