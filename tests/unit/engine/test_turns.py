"""Tasks that need the same state run together, and none waits for ever."""

import asyncio

import pytest

from learnloop_service.training.engine.vllm.turns import Turns


class _Users:
    """Tasks that stay inside until they are asked to leave."""

    def __init__(self) -> None:
        self.turns = Turns[str]()
        self.inside: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str) -> None:
        """A user whose state is the first letter of its name."""
        self._leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._use(name))
        await self.settle()

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self.settle()

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.tasks[name]
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def _use(self, name: str) -> None:
        async with self.turns.of(name[0]):
            self.inside.append(name)
            try:
                await self._leave[name].wait()
            finally:
                self.inside.remove(name)


async def test_one_state_at_a_time_and_in_turn() -> None:
    users = _Users()
    for name in ("a1", "a2", "b1", "a3", "b2", "c1"):
        await users.come(name)
    assert users.inside == ["a1", "a2"], "a3 came after somebody who waits for another state"
    await users.leave("a1")
    assert users.inside == ["a2"]
    await users.leave("a2")
    assert users.inside == ["b1", "b2"]
    await users.leave("b1")
    await users.leave("b2")
    assert users.inside == ["a3"]
    await users.leave("a3")
    assert users.inside == ["c1"]
    await users.leave("c1")


async def test_who_gives_up_holds_up_nobody() -> None:
    users = _Users()
    for name in ("a1", "b1", "a2"):
        await users.come(name)
    await users.cancel("b1")
    assert users.inside == ["a1", "a2"]
    await users.come("b2")
    await users.cancel("a1")
    await users.leave("a2")
    assert users.inside == ["b2"]
    await users.leave("b2")
