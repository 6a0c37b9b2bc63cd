"""Counting the values of a JSON text without parsing it."""

import json
import random
from typing import Any

import pytest

from learnloop_service.app.http.json_values import has_more_values


def _values(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(_values(member) for member in inside)


@pytest.mark.parametrize(
    ("text", "at_least"),
    [
        (b"[" + b"1," * 999 + b"1]", 1_000),
        (b'{"a": [' + b"{}," * 999 + b"{}]}", 1_000),
        (b"[" * 1_000, 1_000),
        (b"[" + b'"\\"",' * 1_000 + b"1]", 1_000),
        (b'["\\\\", ' + b"1," * 1_000 + b"1]", 1_000),
    ],
)
def test_many_values_are_found(text: bytes, at_least: int) -> None:
    assert has_more_values(text, at_least - 1)


@pytest.mark.parametrize("text", [b", " * 5_000, b"[{" * 5_000, b"\\" * 5_000, b'"' * 5_000, b'\\",' * 5_000])
def test_what_a_text_holds_does_not_count(text: bytes) -> None:
    body = json.dumps({"a": text.decode(), "b": [text.decode()]}).encode()
    assert not has_more_values(body, 4)


@pytest.mark.parametrize("length", range(65_520, 65_540))
def test_a_text_may_lie_on_the_border_of_two_pieces(length: int) -> None:
    """The quote, and the backslashes before it, come at the end of a piece, and right after it."""
    for tail in ('"', '\\"', "\\", ",", "\\\\,"):
        body = json.dumps(["," * length + tail + "," * 10, 1, 2]).encode()
        assert has_more_values(body, 2)
        assert not has_more_values(body, 3)


def test_the_bound_is_that_of_the_parsed_text() -> None:
    """Never fewer than there are; at most one more, for each empty list or object."""
    words = random.Random(1)

    def value(depth: int) -> Any:
        kind = words.randrange(5 if depth else 3)
        if kind < 3:
            return ['a,[{\\"', 7, None][kind]
        inner = [value(depth - 1) for _ in range(words.randrange(1, 5))]
        return inner if kind == 3 else {f"k{number},{{": member for number, member in enumerate(inner)}

    for _ in range(200):
        values = [value(5) for _ in range(20)]
        body, count = json.dumps(values).encode(), _values(values)
        assert has_more_values(body, count - 2)
        assert not has_more_values(body, count)
