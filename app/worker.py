"""`work(settings)`: a process that drives runs, without an API."""

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from app.logs import configure_logs
from app.service import open_worker
from app.settings import Settings

SWITCH_INTERVAL_S = 0.001
"""As in the API process: how long one run's thread may hold Python while others wait."""


def work(settings: Settings) -> None:
    """Drive runs until SIGINT or SIGTERM; then hand them over and return. What `open_worker` raises is raised here."""
    configure_logs(settings.log_level, settings.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with suppress(asyncio.CancelledError):  # stopped while it was starting
        asyncio.run(_work(settings))


async def _work(settings: Settings) -> None:
    opening, stop = asyncio.current_task(), asyncio.Event()
    assert opening is not None
    _on_stop_signals(opening.cancel)
    async with open_worker(settings):
        _on_stop_signals(stop.set)
        await stop.wait()


def _on_stop_signals(act: Callable[[], object]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act)
