"""Work for a client ends when the client leaves, and only then."""

import asyncio
from typing import Any, cast

import pytest

from learnloop_service.app.model_registry.proxy import unless_disconnected


class Client:
    """The part of a request that is needed: it sends the rest of a body, and leaves when the test says so."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.is_watched = asyncio.Event()
        self._sent = False

    async def receive(self) -> dict[str, str]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request"}
        self.is_watched.set()
        await self.leaves.wait()
        return {"type": "http.disconnect"}


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def forever(ended: list[str]) -> str:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)  # what is put in order is not cancelled again
        ended.append("in order")
    return "never"


async def test_the_result_of_the_work() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert await unless_disconnected(cast(Any, Client()), work()) == "done"
    assert cancelling() == 0


async def test_a_client_that_leaves_ends_the_work() -> None:
    client, ended = Client(), list[str]()
    client.leaves.set()
    assert await unless_disconnected(cast(Any, client), forever(ended)) is None
    assert ended == ["in order"]
    assert cancelling() == 0
    await asyncio.sleep(0)  # nothing is cancelled any more


async def test_whoever_cancels_the_task_is_heard() -> None:
    client, ended = Client(), list[str]()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await unless_disconnected(cast(Any, Client()), forever(ended))
    task = asyncio.create_task(unless_disconnected(cast(Any, client), forever(ended)))
    await client.is_watched.wait()
    client.leaves.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["in order"] * 2


async def test_an_error_of_the_work_is_passed_on() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        await unless_disconnected(cast(Any, Client()), fail())
    assert cancelling() == 0
