"""Spans nest by context: in whatever way work is spread, each finds its parent."""

import asyncio
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import Tracer

from learnloop_service.app.aio.event_loops import run_in_thread
from learnloop_service.environment.trace import span, tracing
from tests.fakes.noted_spans import Noted


async def a_rollout(number: int) -> None:
    """Two turns that are interleaved with those of others."""
    with span(f"rollout{number}"):
        await asyncio.sleep(0)
        for turn in ("one", "two"):
            with span(turn) as traced:
                await asyncio.sleep(0)
                traced.output = number


def tree(*rollouts: int, under: str = "") -> dict[str, tuple[Any, str | None]]:
    """The spans that `a_rollout` leaves."""
    numbers = {f"{under}rollout{number}": number for number in rollouts}
    return dict.fromkeys(numbers, (None, None)) | {
        f"{path}/{turn}": (number, None) for path, number in numbers.items() for turn in ("one", "two")
    }


async def test_spans_nest_across_gather_and_task_groups() -> None:
    noted = Noted()
    with tracing(noted.tracer), span("iteration"):
        await asyncio.gather(*(a_rollout(number) for number in range(3)))
        async with asyncio.TaskGroup() as tasks:
            for number in (3, 4):
                tasks.create_task(a_rollout(number))
    assert noted.ended == tree(*range(5), under="iteration/") | {"iteration": (None, None)}


async def test_spans_nest_in_threads_that_inherit_their_context() -> None:
    def work() -> None:
        with span("train"):
            pass

    noted = Noted()
    with tracing(noted.tracer), span("iteration"):
        await asyncio.to_thread(work)
    assert set(noted.ended) == {"iteration", "iteration/train"}


async def test_a_runs_own_thread_begins_without_and_may_trace_for_itself() -> None:
    noted = Noted()

    async def untraced() -> None:
        await a_rollout(1)

    async def traced() -> None:
        with tracing(noted.tracer), span("learn_loop"):
            await asyncio.gather(a_rollout(2), a_rollout(3))

    with tracing(noted.tracer), span("elsewhere"):
        await asyncio.gather(run_in_thread(untraced, "one"), run_in_thread(traced, "two"))
    expected = tree(2, 3, under="learn_loop/") | {"learn_loop": (None, None), "elsewhere": (None, None)}
    assert noted.ended == expected


async def test_a_judges_request_on_another_loop_nests_too() -> None:
    """Litellm's loop runs in another thread; a coroutine that is handed to it brings its context."""
    noted = Noted()
    loop = asyncio.new_event_loop()
    with tracing(noted.tracer), span("judge"):
        running = asyncio.create_task(asyncio.to_thread(loop.run_forever))
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(a_rollout(1), loop))
    loop.call_soon_threadsafe(loop.stop)
    await running
    loop.close()
    assert noted.ended == tree(1, under="judge/") | {"judge": (None, None)}


async def test_what_a_block_raises_is_noted_and_raised_on() -> None:
    noted = Noted()
    with tracing(noted.tracer), pytest.raises(KeyError), span("rollout", scenario_id="s"), span("turn"):
        raise KeyError("x")
    assert noted.ended == {"rollout/turn": (None, "KeyError"), "rollout": (None, "KeyError")}
    rollout = noted.spans["rollout"]
    assert rollout.status.description == "KeyError: 'x'"
    assert rollout.events == ()  # an exception's event quotes its traceback
    assert dict(rollout.attributes or {})["input.value"] == '{"scenario_id": "s"}'

    task = asyncio.create_task(cancelled(noted.tracer))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert noted.ended["late"] == (None, "CancelledError")


async def cancelled(tracer: Tracer) -> None:
    with tracing(tracer), span("late"):
        await asyncio.Event().wait()


def test_after_a_span_its_parent_is_the_parent_again() -> None:
    noted = Noted()
    with tracing(noted.tracer):
        with span("a"), span("b"):
            pass
        with span("c"):
            pass
    with span("d"):
        pass
    assert set(noted.ended) == {"a", "a/b", "c"}


def test_all_spans_below_carry_the_run_and_the_iteration() -> None:
    noted = Noted()
    with tracing(noted.tracer), span("learn_loop", run_id="r", config=[1]), span("iteration", iteration=3):
        with span("rollout", seed=4), span("turn"):
            pass
        with tracing(noted.tracer), span("elsewhere"):
            pass
    marks = {
        path: {name: value for name, value in (span.attributes or {}).items() if name.startswith("learnloop.")}
        for path, span in noted.spans.items()
    }
    both = {"learnloop.run_id": "r", "learnloop.iteration": 3}
    assert marks == {
        "learn_loop": {"learnloop.run_id": "r"},
        "learn_loop/iteration": both,
        "learn_loop/iteration/rollout": both | {"learnloop.seed": 4},
        "learn_loop/iteration/rollout/turn": both,
        "elsewhere": {},
    }


def test_spans_of_another_library_neither_hold_ours_nor_are_held_up() -> None:
    """Our spans begin a separate tree, whatever library the process traces with."""
    noted, theirs = Noted(), Noted()
    with theirs.tracer.start_as_current_span("request"), tracing(noted.tracer), span("ask"):
        assert trace.get_current_span().is_recording()
    assert noted.spans["ask"].parent is None
    assert set(theirs.ended) == {"request"}


def test_without_a_tracer_nothing_happens() -> None:
    class Unread(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError("nobody watches")

    with span("rollout", scenario=Unread(x=1)) as traced:
        traced.output = Unread(x=1)
    with pytest.raises(ValueError, match="x"), span("rollout"):
        raise ValueError("x")
