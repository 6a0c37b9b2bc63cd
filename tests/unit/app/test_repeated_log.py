"""What a loop that tries again and again writes to the log."""

import asyncio

from psycopg import OperationalError
from structlog import get_logger
from structlog.testing import capture_logs

from learnloop_service.app.aio.periodic import every
from learnloop_service.app.logs import RepeatedLog


def test_each_event_is_written_once_a_period_with_how_often_it_came() -> None:
    with capture_logs() as lines:
        log = RepeatedLog(get_logger(), period_s=3_600)
        for attempt in range(3):
            log.warning("no run is claimed", attempt=attempt)
        log.error("not started", reason="no space")
        log._period_s = 0
        log.warning("no run is claimed", attempt=3)
        log.warning("no run is claimed", attempt=4)
    assert lines == [
        {"event": "no run is claimed", "attempt": 0, "log_level": "warning"},
        {"event": "not started", "reason": "no space", "log_level": "error"},
        {"event": "no run is claimed", "attempt": 3, "repeated": 2, "log_level": "warning"},
        {"event": "no run is claimed", "attempt": 4, "log_level": "warning"},
    ]


async def test_periodic_work_that_keeps_failing_is_said_once() -> None:
    failures = 0
    often = asyncio.Event()

    async def fail() -> None:
        nonlocal failures
        failures += 1
        if failures == 10:
            often.set()
        raise OperationalError("the database system is starting up")

    with capture_logs() as lines:
        async with every(0.001, fail, "look"):
            await often.wait()
    assert [line["event"] for line in lines] == ["periodic work failed"]
