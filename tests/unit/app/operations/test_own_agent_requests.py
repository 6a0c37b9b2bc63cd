"""Scenarios of an own agent that stand behind a URL."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.operations.own_agent_requests import _rows


@given(
    st.lists(st.dictionaries(st.text(), st.text(), max_size=3), min_size=2, max_size=4), st.sampled_from(["\n", "\r\n"])
)
def test_only_line_feeds_end_a_scenario(rows: list[dict[str, str]], end: str) -> None:
    assert _rows(end.join(json.dumps(row, ensure_ascii=False) for row in rows).encode("utf-8", "surrogatepass")) == rows


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_what_python_takes_for_a_line_ends_no_scenario(mark: str) -> None:
    rows = [{"question": f"one{mark}two"}, {"question": "three"}]
    assert _rows("\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode()) == rows
