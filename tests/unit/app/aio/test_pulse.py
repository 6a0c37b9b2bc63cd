"""What is asked again and again: when it counts as not answering."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from learnloop_service.app.aio.pulse import Pulse, Trouble


async def test_a_fault_is_reported_until_the_next_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [ConnectionError("refused"), ConnectionError("gone"), None, ConnectionError("refused")]
    now = 0.0
    monkeypatch.setattr("learnloop_service.app.aio.pulse.time.monotonic", lambda: now)

    async def ask() -> None:
        nonlocal now
        now += 1
        if (error := answers.pop(0)) is not None:
            raise error

    troubles = []
    pulse = Pulse(ask, period_s=0)
    async with aclosing(pulse.beats()) as beats:
        async for trouble in beats:
            troubles.append(trouble)
            if not answers:
                break
    assert troubles == [Trouble(0, "refused"), Trouble(1, "gone"), None, Trouble(0, "refused")]


async def _never() -> None:
    await asyncio.Event().wait()


async def test_no_answer_in_time_is_a_fault() -> None:
    pulse = Pulse(_never, period_s=0, deadline_s=0.01)
    async with aclosing(pulse.beats()) as beats:
        async for trouble in beats:
            if trouble is not None:
                break
    assert trouble is not None
    assert trouble.reason == "no answer within 0.01 s"


async def test_being_held_up_ourselves_says_nothing() -> None:
    requests = 0

    async def ask() -> None:
        nonlocal requests
        requests += 1
        threading.Event().wait(0.05)  # nothing of ours runs meanwhile
        await _never()

    pulse = Pulse(ask, period_s=0, deadline_s=0.01)
    async with aclosing(pulse.beats()) as beats:
        async for trouble in beats:
            assert trouble is None
            if requests == 2:
                break
