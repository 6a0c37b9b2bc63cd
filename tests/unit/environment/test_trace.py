"""Spans nest by context: in whatever way work is spread, each finds its parent."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.aio.event_loops import run_in_thread
from environment.trace import span, tracing


@dataclass
class Noted:
    """A tracer that notes each span as `parent/name`, with what became of it."""

    ended: dict[str, tuple[Any, str | None]] = field(default_factory=dict)
    inputs: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def start(self, name: str, inputs: Mapping[str, Any], parent: object | None) -> object:
        path = f"{parent}/{name}" if parent else name
        self.inputs[path] = inputs
        return path

    def end(self, call: object, output: Any, error: BaseException | None) -> None:
        self.ended[str(call)] = (output, type(error).__name__ if error else None)


async def a_rollout(number: int) -> None:
    """Two turns that are interleaved with those of others."""
    with span(f"rollout{number}"):
        await asyncio.sleep(0)
        for turn in ("one", "two"):
            with span(turn) as traced:
                await asyncio.sleep(0)
                traced.output = number


def tree(*rollouts: int, under: str = "") -> dict[str, tuple[Any, str | None]]:
    """What `a_rollout` leaves."""
    each = {f"{under}rollout{number}": number for number in rollouts}
    return dict.fromkeys(each, (None, None)) | {
        f"{path}/{turn}": (number, None) for path, number in each.items() for turn in ("one", "two")
    }


async def test_spans_nest_across_gather_and_task_groups() -> None:
    tracer = Noted()
    with tracing(tracer), span("iteration"):
        await asyncio.gather(*(a_rollout(number) for number in range(3)))
        async with asyncio.TaskGroup() as tasks:
            for number in (3, 4):
                tasks.create_task(a_rollout(number))
    assert tracer.ended == tree(*range(5), under="iteration/") | {"iteration": (None, None)}


async def test_spans_nest_in_threads_that_inherit_their_context() -> None:
    def work() -> None:
        with span("train"):
            pass

    tracer = Noted()
    with tracing(tracer), span("iteration"):
        await asyncio.to_thread(work)
    assert set(tracer.ended) == {"iteration", "iteration/train"}


async def test_a_runs_own_thread_begins_without_and_may_trace_for_itself() -> None:
    tracer = Noted()

    async def untraced() -> None:
        await a_rollout(1)

    async def traced() -> None:
        with tracing(tracer), span("learn_loop"):
            await asyncio.gather(a_rollout(2), a_rollout(3))

    with tracing(tracer), span("elsewhere"):
        await asyncio.gather(run_in_thread(untraced, "one"), run_in_thread(traced, "two"))
    expected = tree(2, 3, under="learn_loop/") | {"learn_loop": (None, None), "elsewhere": (None, None)}
    assert tracer.ended == expected


async def test_a_judges_request_on_another_loop_nests_too() -> None:
    """Litellm's loop lives in a thread of its own; a coroutine that is handed to it brings its context."""
    tracer = Noted()
    loop = asyncio.new_event_loop()
    with tracing(tracer), span("judge"):
        running = asyncio.create_task(asyncio.to_thread(loop.run_forever))
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(a_rollout(1), loop))
    loop.call_soon_threadsafe(loop.stop)
    await running
    loop.close()
    assert tracer.ended == tree(1, under="judge/") | {"judge": (None, None)}


async def test_what_a_block_raises_is_noted_and_raised_on() -> None:
    tracer = Noted()
    with tracing(tracer), pytest.raises(KeyError), span("rollout", scenario_id="s"), span("turn"):
        raise KeyError("x")
    assert tracer.ended == {"rollout/turn": (None, "KeyError"), "rollout": (None, "KeyError")}
    assert tracer.inputs["rollout"] == {"scenario_id": "s"}

    task = asyncio.create_task(cancelled(tracer))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tracer.ended["late"] == (None, "CancelledError")


async def cancelled(tracer: Noted) -> None:
    with tracing(tracer), span("late"):
        await asyncio.Event().wait()


def test_after_a_span_its_parent_is_the_parent_again() -> None:
    tracer = Noted()
    with tracing(tracer):
        with span("a"), span("b"):
            pass
        with span("c"):
            pass
    with span("d"):
        pass
    assert set(tracer.ended) == {"a", "a/b", "c"}


def test_without_a_tracer_nothing_happens() -> None:
    with span("rollout", scenario_id="s") as traced:
        traced.output = 1
    with pytest.raises(ValueError, match="x"), span("rollout"):
        raise ValueError("x")


def test_a_span_that_its_tracer_does_not_record_has_no_children() -> None:
    class Forgetful(Noted):
        def start(self, name: str, inputs: Mapping[str, Any], parent: object | None) -> object:
            return None if name == "lost" else super().start(name, inputs, parent)

    tracer = Forgetful()
    with tracing(tracer), span("lost"), span("turn"):
        pass
    assert "turn" in tracer.ended
