"""Turns go round, and no queue grows without end."""

import asyncio
from typing import Any

import pytest

from learnloop_service.app.aio.fair_turns import FairTurns
from learnloop_service.app.errors import TooManyRequests


class _Work:
    """Notes who has a turn, and keeps it until the test lets it end."""

    def __init__(self, turns: FairTurns) -> None:
        self._turns = turns
        self.begun: list[str] = []
        self._go_on = asyncio.Semaphore(0)

    def wants(self, owner: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._hold(owner))

    async def _hold(self, owner: str) -> None:
        async with self._turns.turn(owner):
            self.begun.append(owner)
            await self._go_on.acquire()

    async def ends(self, count: int = 1) -> None:
        for _ in range(count):
            self._go_on.release()
            await _settled()


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_owners_take_turns_whoever_came_first_with_many() -> None:
    work = _Work(FairTurns(1, 10))
    tasks = [work.wants(owner) for owner in ("a", "a", "a", "a", "b", "c", "b")]
    await _settled()
    assert work.begun == ["a"]
    await work.ends(7)
    assert work.begun == ["a", "a", "b", "c", "a", "b", "a"]
    await asyncio.gather(*tasks)


async def test_no_more_than_the_number_have_a_turn() -> None:
    work = _Work(FairTurns(2, 10))
    tasks = [work.wants("a") for _ in range(5)]
    await _settled()
    assert len(work.begun) == 2
    await work.ends()
    assert len(work.begun) == 3
    await work.ends(4)
    await asyncio.gather(*tasks)


async def test_the_queue_of_an_owner_is_bounded() -> None:
    work = _Work(FairTurns(1, 2))
    tasks = [work.wants("a") for _ in range(3)]
    await _settled()
    with pytest.raises(TooManyRequests):
        await work.wants("a")
    tasks.append(work.wants("b"))
    await _settled()
    await work.ends(4)
    await asyncio.gather(*tasks)


async def test_who_gives_up_leaves_the_place_to_others() -> None:
    work = _Work(FairTurns(1, 2))
    holds, *gone = (work.wants("a") for _ in range(3))
    await _settled()
    for task in gone:
        task.cancel()
    await _settled()
    others = [work.wants("a") for _ in range(2)]
    await _settled()
    await work.ends(3)
    await asyncio.gather(holds, *others)


@pytest.mark.parametrize("also_passed_on", [False, True])
async def test_a_task_that_gives_up_loses_no_others_turn(also_passed_on: bool) -> None:
    work = _Work(FairTurns(1, 10))
    first, second, third = (work.wants("a") for _ in range(3))
    await _settled()
    if also_passed_on:  # the turn comes while the cancellation is on its way
        work._go_on.release()
        first.add_done_callback(lambda _: second.cancel())
    else:
        second.cancel()
    await _settled()
    await work.ends(2 - also_passed_on)
    results: Any = await asyncio.gather(first, second, third, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [False, True, False]
    assert work.begun.count("a") in (2, 3)


async def test_a_turn_ends_with_an_error_too() -> None:
    turns = FairTurns(1, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            async with turns.turn("a"):
                raise ZeroDivisionError
