"""The outcome of a unit is a function of the set of its events, and always a number in [0, 1]."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from learnloop_service.app.feedback.outcomes import UnitEvent, outcome_of

START = datetime(2026, 3, 1, tzinfo=UTC)
THUMBS = {"feedback": {"thumbs_up": 0.9, "none": 0.5, "thumbs_down": 0.1}}
RULES: Sequence[dict[str, Any]] = (
    THUMBS,
    {"event": "call_booked"},
    {"session_reward": [-1.0, 3.0]},
    {"value": "resolved"},
)
TYPES = ("sent", "opened", "replied", "call_booked", "closed_won", "thumbs_up", "thumbs_down", "preferred", "outcome")


def _at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


_EVENTS = st.lists(
    st.builds(
        UnitEvent,
        type=st.sampled_from((*TYPES, "session_reward")),
        occurred_at=st.integers(0, 3).map(_at),
        name=st.sampled_from(("resolved", "rated", None)),
        value=st.none() | st.floats(-4, 4),
    ).map(
        lambda event: event if event.type != "outcome" else UnitEvent("outcome", event.occurred_at, event.name, 0.25)
    ),
    max_size=6,
)


@given(rule=st.sampled_from(RULES), events=_EVENTS, data=st.data())
@example(rule=THUMBS, events=[UnitEvent("thumbs_up", START), UnitEvent("thumbs_down", START)], data=None)
def test_neither_order_nor_repetition_changes_an_outcome(
    rule: dict[str, Any], events: list[UnitEvent], data: st.DataObject | None
) -> None:
    repeated = [*events, *events[::2]]
    shuffled = repeated[::-1] if data is None else data.draw(st.permutations(repeated))
    outcome = outcome_of(rule, events)
    assert outcome_of(rule, shuffled) == outcome
    assert 0.0 <= outcome <= 1.0


@pytest.mark.parametrize(
    ("rule", "events", "outcome"),
    [
        (THUMBS, [], 0.5),
        (THUMBS, [("sent", 0), ("preferred", 1)], 0.5),
        (THUMBS, [("thumbs_down", 2), ("thumbs_up", 1)], 0.1),
        (THUMBS, [("thumbs_up", 1), ("thumbs_down", 1)], 0.1),
        ({"event": "call_booked"}, [], 0.0),
        ({"event": "call_booked"}, [("replied", 1), ("thumbs_up", 2)], 0.0),
        ({"event": "call_booked"}, [("call_booked", 1), ("replied", 2)], 1.0),
        ({"event": "call_booked"}, [("closed_won", 1)], 1.0),
        ({"session_reward": [-1.0, 3.0]}, [], 0.0),
        ({"session_reward": [-1.0, 3.0]}, [("session_reward", 2, None, 3.0), ("session_reward", 1, None, 1.0)], 0.5),
        ({"session_reward": [-1.0, 3.0]}, [("session_reward", 2, None, 99.0)], 1.0),
        ({"session_reward": [-1.0, 3.0]}, [("session_reward", 2, None, -99.0)], 0.0),
        ({"value": "resolved"}, [("outcome", 9, "rated", 1.0)], 0.0),
        ({"value": "resolved"}, [("outcome", 2, "resolved", 0.75), ("outcome", 1, "resolved", 1.0)], 0.75),
    ],
)
def test_an_outcome_follows_its_rule(rule: dict[str, Any], events: list[tuple[Any, ...]], outcome: float) -> None:
    unit_events = [UnitEvent(type, _at(minute), *more) for type, minute, *more in events]
    assert outcome_of(rule, unit_events) == outcome
