"""Work that is in flight when a run stops, with a scripted model: what was answered is not asked again."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from random import Random
from typing import Any

import pytest

from learnloop_service.environment.base import Json
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.budget import BudgetReached, Reservation, Unlimited, Unreserved, Usage
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.phases import Phase
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.model_calls import ModelCalls, Sampling
from learnloop_service.training.types import IterationResult
from tests.conditions import until
from tests.fakes.scripted_chat import Reply, ScriptedChat, call, scripted_chat
from tests.integration.training.scripted_runs import (
    CONFIG,
    MemoryJournal,
    Trained,
    address_of,
    ahead,
    figures,
    iterations_of,
    lucky,
    resume_after,
    run,
    skilled,
)

PER_ITERATION = CONFIG.groups_per_iteration * CONFIG.rollouts_per_group
ANSWER = skilled(lucky)


def searched(request: Mapping[str, Json]) -> bool:
    return any(message["role"] == "tool" for message in request["messages"])


async def search_first(request: Mapping[str, Json]) -> Reply:
    """Two turns: a search, then the answer."""
    if not searched(request):
        return call("search_inbox", keywords=["kickoff"])
    reply: Reply = await ANSWER(request)
    return reply


def request_counts(model: ScriptedChat) -> Counter[str]:
    """How often each request came."""
    return Counter(json.dumps(request, sort_keys=True) for request in model.requests)


class TooSmallForAnEvaluation(Unlimited):
    """The budget of an iteration whose evaluation does not fit."""

    def __init__(self, reach: Callable[[], Awaitable[None]]) -> None:
        self._reach = reach

    @asynccontextmanager
    async def reserve(self, phase: Phase, most: Callable[[], Usage | None]) -> AsyncIterator[Reservation]:
        if phase is Phase.EVALUATE:
            await self._reach()
            raise BudgetReached("the evaluation does not fit")
        yield Unreserved()


class ReachedInIteration2(Unlimited):
    """A budget that is reached by the evaluation of iteration 2, as soon as `may_end` says so."""

    limited = True

    def __init__(self, may_end: Callable[[], object]) -> None:
        self.reached = False
        self._may_end = may_end

    def for_iteration(self, iteration: int, kept: Mapping[Phase, Usage]) -> Unlimited:
        return TooSmallForAnEvaluation(self._reach) if iteration == 2 else self

    async def _reach(self) -> None:
        await until(lambda: self.reached or self._may_end())
        self.reached = True


async def test_a_budget_that_is_reached_lets_the_rollouts_ahead_be_finished() -> None:
    """The rollouts of one scenario hang in their second turn until the budget is reached, and are answered then."""
    hanging = next(address for address, iteration in iterations_of(CONFIG).items() if iteration == 3)

    async with scripted_chat(search_first) as model:
        undisturbed = await run(model, ahead(1))
        once = request_counts(model)
        model.requests.clear()
        journal, policy, results = MemoryJournal(), Trained(model.url), list[IterationResult]()
        budget = ReachedInIteration2(lambda: model.answering > 0)

        async def hangs_ahead(request: Mapping[str, Json]) -> Reply:
            if address_of(request) == hanging and searched(request):
                await until(lambda: budget.reached)
            return await search_first(request)

        model.script = hangs_ahead
        loop = learn_loop(ahead(1), SyntheticEmailSearch(), ReferenceJudge(), policy, journal=journal, budget=budget)
        async with aclosing(loop):
            results += [await anext(loop), await anext(loop)]
            with pytest.raises(BudgetReached):
                await anext(loop)
        assert model.answering == 0
        assert sum(name.startswith("rollout/train/") for name in journal.saved[3]) == PER_ITERATION
        results += await run(model, ahead(1), policy=policy, journal=journal, resume=resume_after(results))
    assert list(map(figures, results)) == list(map(figures, undisturbed))
    assert request_counts(model) == once


@pytest.mark.parametrize("staleness", [0, 1])
async def test_what_was_answered_before_a_run_was_cut_off_is_not_asked_again(staleness: int) -> None:
    """The requests that were being answered then are repeated, and no others."""
    async with scripted_chat(search_first) as model:
        undisturbed = await run(model, ahead(staleness))
        once = request_counts(model)
        model.requests.clear()

        async def hangs(request: Mapping[str, Json]) -> Reply:
            if searched(request):
                await asyncio.Event().wait()
            return await search_first(request)

        model.script = hangs
        journal, policy = MemoryJournal(), Trained(model.url)
        cut = asyncio.create_task(run(model, ahead(staleness), policy=policy, journal=journal))
        await until(lambda: sum(map(searched, model.requests)) == CONFIG.concurrency)
        cut.cancel()
        await asyncio.wait((cut,))
        in_flight = Counter(json.dumps(request, sort_keys=True) for request in model.requests if searched(request))
        model.script = search_first
        resumed = await run(model, ahead(staleness), policy=policy, journal=journal)
    assert list(map(figures, resumed)) == list(map(figures, undisturbed))
    assert in_flight.total() == CONFIG.concurrency
    assert request_counts(model) == once + in_flight


class Tight:
    """A reservation that has room for one call at a time."""

    def __init__(self) -> None:
        self.spent = 0

    async def room_for(self, most: Callable[[], Usage]) -> None:
        if most().completion_tokens > 10:
            raise BudgetReached("another call does not fit")

    def spend(self, used: Usage) -> None:
        self.spent += used.completion_tokens


async def test_a_call_that_does_not_fit_beside_another_waits_for_it() -> None:
    """Were it refused, the rollout would end with its other call in flight, whose tokens no ledger had."""
    may_answer = asyncio.Event()

    async def script(request: Mapping[str, Json]) -> Reply:
        await may_answer.wait()
        return Reply(content="hello")

    async with scripted_chat(script) as model, open_chat(model.endpoint()) as chat:
        reservation, metrics = Tight(), defaultdict[str, Any](int)
        calls = ModelCalls(chat, Sampling(1.0, 10), Random(1), reservation, metrics)
        both = [asyncio.create_task(calls.complete([{"role": "user", "content": text}], ())) for text in "ab"]
        await until(lambda: model.answering == 1)
        may_answer.set()
        await asyncio.gather(*both)
    assert len(model.requests) == 2
    assert reservation.spent == 20
