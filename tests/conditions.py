"""Waiting for conditions that only polling can see. The one place in the tests that sleeps to do so."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

_PAUSE_S = 0.005
_PATIENCE_S = 60.0
"""Long enough for a machine that does something else, too. What comes sooner is seen sooner."""


async def until(condition: Callable[[], object], timeout_s: float = _PATIENCE_S) -> None:
    """Wait for a condition. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(_PAUSE_S)


async def answered(
    ask: Callable[[], Awaitable[Any]], wanted: Callable[[Any], object], timeout_s: float = _PATIENCE_S
) -> Any:
    """Ask until the answer is the wanted one; that answer. Raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not wanted(answer := await ask()):
            await asyncio.sleep(_PAUSE_S)
    return answer
