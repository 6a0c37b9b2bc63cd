"""Runs coroutines on a separate thread with its own event loop.

A learn loop parses thousands of replies and runs third-party environments and judges. On the API's event loop, each of
them would block every request.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


async def run_in_thread(work: Callable[[], Coroutine[Any, Any, Result]], name: str) -> Result:
    """Return the result of `work()`. Cancelling the caller cancels the work and waits for its end."""
    main_loop = asyncio.get_running_loop()
    ended: asyncio.Future[Result] = main_loop.create_future()
    begun: Future[Callable[[], None]] = Future()

    async def body() -> Result:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        begun.set_result(lambda: _cancel(loop, task))
        return await work()

    def thread() -> None:
        try:
            with asyncio.Runner() as runner:
                result = runner.run(body())
        except asyncio.CancelledError:
            main_loop.call_soon_threadsafe(ended.cancel)
        except BaseException as error:
            main_loop.call_soon_threadsafe(ended.set_exception, error)
        else:
            main_loop.call_soon_threadsafe(ended.set_result, result)

    threading.Thread(target=thread, name=name, daemon=True).start()
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        begun.add_done_callback(lambda cancel: cancel.result()())
        await asyncio.wait({ended})
        if not ended.cancelled():
            ended.exception()  # marks the error as retrieved; the cancellation takes precedence
        raise


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    with suppress(RuntimeError):  # the work has just ended, and its loop is closed
        loop.call_soon_threadsafe(task.cancel)


async def run_on_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that runs on the given loop, which can be another thread's."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


async def shielded(act: Awaitable[Result]) -> Result:
    """Return the result of `act`, which always runs to its end. A cancellation is raised only after that."""
    task = asyncio.ensure_future(act)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
