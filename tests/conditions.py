"""Waits for conditions that can only be polled. No other place in the tests sleeps to do so."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25
PATIENCE_S = 180.0
"""Default timeout in seconds, long enough for a busy machine. A condition that holds earlier is noticed earlier."""


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Poll a condition until it holds. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(_PAUSE_S)


async def answered(
    ask: Callable[[], Awaitable[Any]], condition: Callable[[Any], object], timeout_s: float = PATIENCE_S
) -> Any:
    """Poll until the answer meets the condition, and return it. Raises TimeoutError.

    Pauses grow with the elapsed time, because the polled process needs the processor for the awaited work.
    """
    started = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not condition(answer := await ask()):
            elapsed = time.monotonic() - started
            await asyncio.sleep(min(max(_PAUSE_S, elapsed / 8), _LONGEST_PAUSE_S))
    return answer
