"""Whatever is sampled can be stored."""

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.db.json_text import MAX_NESTING, dumps, flaw, loads, storable_text

_TEXT = st.text(st.characters(exclude_categories=()))


def _values(floats: st.SearchStrategy[float]) -> st.SearchStrategy[object]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | floats | _TEXT,
        lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner),
    )


@given(_values(st.floats()))
def test_the_json_is_strict_and_has_only_storable_characters(value: object) -> None:
    text = dumps(value)
    text.encode()
    stored = json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert flaw(stored) is None


@given(_TEXT)
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert (flaw(text) is not None) == (storable_text(text) != text)
    assert len(storable_text(text)) == len(text)


def test_what_is_replaced() -> None:
    assert json.loads(dumps({"a\x00": [float("nan"), float("-inf"), "\ud800", 1.5]})) == {
        "a\ufffd": [None, None, "\ufffd", 1.5]
    }


def test_numbers_of_any_size_are_read() -> None:
    """A jsonb column takes them, so a row that holds one can be read."""
    assert loads('{"whole": 1' + 400 * "0" + ', "large": 1e400, "exact": [18446744073709551615, 0.1]}') == {
        "whole": 10**400,
        "large": math.inf,
        "exact": [2**64 - 1, 0.1],
    }


@given(_values(st.floats(allow_nan=False, allow_infinity=False)))
def test_what_has_no_flaw_is_stored_as_it_is_and_nothing_else(value: object) -> None:
    assert (flaw(value) is None) == (json.loads(dumps(value)) == value)


def test_a_flaw_is_found_wherever_it_is() -> None:
    for bad in ("a\x00", "\ud800", "\udc00\ud800"):
        values: list[Any] = [bad, [bad], {"a": [{"b": bad}]}, {bad: 1}, [{"a": {bad: {}}}]]
        for value in values:
            assert "U+0000" in (flaw(value) or "")


def test_how_deep_values_may_be_nested() -> None:
    def nested(depth: int) -> Any:
        value: Any = "x"
        for number in range(depth):
            value = [value] if number % 2 else {"a": value}
        return value

    assert flaw(nested(MAX_NESTING - 1)) is None
    assert flaw(nested(MAX_NESTING)) == f"values may not be nested more than {MAX_NESTING} deep"
    assert flaw(nested(10_000)) is not None
