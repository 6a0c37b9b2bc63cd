"""Work on another thread: results, errors and cancellation cross over."""

import asyncio
import threading

import pytest

from learnloop_service.app.aio.event_loops import run_in_thread, run_on_loop, shielded


async def test_the_result_comes_back_and_calls_home_work() -> None:
    home, home_thread = asyncio.get_running_loop(), threading.get_ident()

    async def at_home() -> int:
        return threading.get_ident()

    async def work() -> tuple[int, int]:
        return threading.get_ident(), await run_on_loop(home, at_home())

    there, here = await run_in_thread(work, "t")
    assert here == home_thread != there


async def test_an_error_comes_back() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        await run_in_thread(work, "t")


async def test_blocking_there_does_not_block_here() -> None:
    blocked, go_on = threading.Event(), threading.Event()

    async def work() -> None:
        blocked.set()
        go_on.wait()

    task = asyncio.create_task(run_in_thread(work, "t"))
    while not blocked.is_set():
        await asyncio.sleep(0)
    go_on.set()
    await task


async def test_a_cancelled_caller_waits_for_the_works_end() -> None:
    begun, cleaned_up = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(5):  # it takes its time
                await asyncio.sleep(0)
            cleaned_up.set()

    task = asyncio.create_task(run_in_thread(work, "t"))
    while not begun.is_set():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned_up.is_set()


async def test_a_cancellation_at_once_is_not_lost() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    for _ in range(50):
        task = asyncio.create_task(run_in_thread(work, "t"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_must_not_break_goes_to_its_end() -> None:
    saved, go_on = [], asyncio.Event()

    async def save() -> None:
        await go_on.wait()
        saved.append(1)

    task = asyncio.create_task(shielded(save()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert saved == [1]
