"""When a message is sent again."""

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.webhooks.retries import JITTER, MAX_RETRY_AFTER_S, RETRY_DELAYS_S, retry_delay_s
from learnloop_service.environment.bounded_http import parse_retry_after

NOW = datetime(2026, 3, 14, 9, 30, tzinfo=UTC)


def test_the_table_is_that_of_the_specification() -> None:
    minute, hour = 60, 3600
    assert list(RETRY_DELAYS_S) == [5, 5 * minute, 30 * minute, *(hours * hour for hours in (2, 5, 10, 14, 20, 24))]


@given(attempt=st.integers(1, len(RETRY_DELAYS_S)), seed=st.integers(0, 2**32))
def test_pauses_keep_to_the_table_within_the_jitter(attempt: int, seed: int) -> None:
    planned = RETRY_DELAYS_S[attempt - 1]
    pause = retry_delay_s(attempt, None, Random(seed))
    assert pause is not None
    assert planned * (1 - JITTER) <= pause <= planned * (1 + JITTER)


def test_pauses_differ() -> None:
    random = Random(1)
    assert len({retry_delay_s(1, None, random) for _ in range(20)}) == 20


def test_there_is_no_pause_after_the_last_attempt() -> None:
    assert retry_delay_s(len(RETRY_DELAYS_S) + 1, 5.0, Random(1)) is None
    assert retry_delay_s(1, None, Random(1), ()) is None


def test_a_receiver_is_not_asked_before_it_wants_to_be_nor_much_later() -> None:
    assert retry_delay_s(1, 3_000.0, Random(1)) == 3_000.0
    assert (retry_delay_s(1, 0.0, Random(1)) or 0) >= 4.0
    assert retry_delay_s(1, 1e9, Random(1)) == MAX_RETRY_AFTER_S


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        ("120", 120.0),
        ("9" * 400, 999_999_999.0),
        ("Sat, 14 Mar 2026 09:31:00 GMT", 60.0),
        ("Sat, 14 Mar 2026 10:30:00 +0100", 0.0),
        ("Sat, 14 Mar 2026 09:00:00 GMT", 0.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("¹", None),
    ],
)
def test_retry_after_in_both_forms(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, NOW) == seconds
