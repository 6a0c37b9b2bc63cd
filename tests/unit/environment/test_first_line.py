"""An error is said in one line, even one without a text."""

import pytest

from environment.first_line import first_line


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such table\nLINE 1: SELECT"), "no such table"),
        (OSError("\n\n the disk is full \r\nsee the log"), "the disk is full "),
        (TimeoutError(), "TimeoutError"),
        (ConnectionResetError(" \n "), "ConnectionResetError"),
    ],
)
def test_an_error_is_said_in_one_line(error: Exception, said: str) -> None:
    assert first_line(error) == said
