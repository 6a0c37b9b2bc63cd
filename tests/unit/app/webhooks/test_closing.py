"""A dispatcher ends when it is closed."""

import asyncio
from typing import Any

from learnloop_service.app.webhooks.dispatcher import Dispatcher
from learnloop_service.app.webhooks.sender import Sender


class Silent(Sender):
    """A sender that is never asked."""

    def __init__(self) -> None: ...

    async def close(self) -> None: ...


class Idle(Dispatcher):
    """Has nothing to send; `waiting` is set when it has looked."""

    def __init__(self) -> None:
        nothing: Any = None
        super().__init__(nothing, Silent())
        self.waiting = asyncio.Event()

    async def _send_due(self) -> None:
        self.waiting.set()


async def test_a_close_that_comes_together_with_a_wake_up_ends_it() -> None:
    dispatcher = Idle()
    dispatcher.start()
    await dispatcher.waiting.wait()
    await asyncio.sleep(0)  # it waits for the event now
    dispatcher.wake()
    async with asyncio.timeout(60):
        await dispatcher.close()
