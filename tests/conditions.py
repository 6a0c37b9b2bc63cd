"""Waiting for conditions that only polling can see. The one place in the tests that sleeps to do so."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25
PATIENCE_S = 180.0
"""Long enough for a machine that does something else, too. What comes sooner is seen sooner."""


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(_PAUSE_S)


async def answered(
    ask: Callable[[], Awaitable[Any]], wanted: Callable[[Any], object], timeout_s: float = PATIENCE_S
) -> Any:
    """Ask until the answer is the wanted one; that answer. Raises TimeoutError.

    Pauses grow with the time that it has taken: who is asked needs the processor for what is waited for.
    """
    started = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not wanted(answer := await ask()):
            elapsed = time.monotonic() - started
            await asyncio.sleep(min(max(_PAUSE_S, elapsed / 8), _LONGEST_PAUSE_S))
    return answer
