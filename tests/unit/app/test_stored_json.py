"""Whatever is sampled can be stored."""

import json

from hypothesis import given
from hypothesis import strategies as st

from app.stored_json import dumps, has_unstorable, storable_text

_TEXT = st.text(st.characters(exclude_categories=()))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner),
)


@given(_VALUES)
def test_the_json_is_strict_and_has_only_storable_characters(value: object) -> None:
    text = dumps(value)
    text.encode()
    stored = json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert not has_unstorable(stored)


@given(_TEXT)
def test_ordinary_text_is_not_changed(text: str) -> None:
    assert has_unstorable(text) == (storable_text(text) != text)
    assert len(storable_text(text)) == len(text)


def test_what_is_replaced() -> None:
    assert json.loads(dumps({"a\x00": [float("nan"), float("-inf"), "\ud800", 1.5]})) == {
        "a\ufffd": [None, None, "\ufffd", 1.5]
    }
