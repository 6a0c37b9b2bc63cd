"""litellm, on an event loop of its own.

litellm keeps one queue and one task a process for its bookkeeping, bound to the loop that asked last; every run has a
loop of its own, and with two of them those tasks break each other. So all requests go through one loop in a thread
that lives as long as the process. The import, which takes seconds, is made there too.
"""

import asyncio
import logging
import os
import threading
import warnings
from collections.abc import Coroutine
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

Result = TypeVar("Result")
IMPORTING = threading.RLock()
"""Held while litellm is imported, or something else with a stand-in for it."""


async def on_litellm_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which may call `import_litellm`. Cancelling the caller cancels the work."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, _loop()))


def import_litellm() -> ModuleType:
    """litellm with its own printing and logging off: they may hold trajectories. Takes seconds the first time."""
    # Else it fetches a price list from the network at import.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with IMPORTING:
        import litellm

    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)  # on its own answers
    return litellm


_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        return _started()


@cache
def _started() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="litellm", daemon=True).start()
    return loop
