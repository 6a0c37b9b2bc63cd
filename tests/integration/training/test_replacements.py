"""Groups that teach nothing and are replaced, with a scripted model: only sampling and training are not real."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from learnloop_service.environment.base import Json
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.inclusion import is_replacement
from learnloop_service.training.journal import ALL_JUDGED, ALL_REPLACED, repair, unscored
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.scoring import success_rate, summarise
from learnloop_service.training.types import Group, IterationResult, RunConfig
from tests.conditions import until
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.integration.training.scripted_runs import (
    CONFIG,
    Few,
    MemoryJournal,
    Trained,
    address_of,
    ahead,
    figures,
    iterations_of,
    mixed,
    resume_after,
    run,
    skilled,
)

REPLACING = replace(CONFIG, replace_groups=True)
SCHEDULED = iterations_of(CONFIG)


def parts(result: IterationResult) -> tuple[list[Group], list[Group]]:
    scheduled = [group for group in result.groups if not is_replacement(group)]
    return scheduled, [group for group in result.groups if is_replacement(group)]


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_group_that_taught_nothing_is_replaced_once_by_another_scenario(staleness: int) -> None:
    async with scripted_chat(skilled(mixed)) as model:
        results = await run(model, ahead(staleness, REPLACING), policy=(policy := Trained(model.url)))
        usual = await run(model, ahead(staleness, CONFIG))
    replaced = 0
    for number, (result, without) in enumerate(zip(results[1:], usual[1:], strict=True), 1):
        scheduled, replacements = parts(result)
        earlier = results[max(0, number - 1 - staleness)]
        idle = [group.scenario.id for group in parts(earlier)[0] if group.skipped == "no_signal"]
        assert [group.rollouts[0].replaces for group in replacements] == idle
        assert {scored.inclusion for group in replacements for scored in group.rollouts} <= {len(idle) / 3}
        assert {scored.inclusion for group in scheduled for scored in group.rollouts} == {1.0}
        assert not {group.scenario.task["inbox_address"] for group in replacements} & SCHEDULED.keys()
        rollouts = [scored for group in scheduled for scored in group.rollouts]
        assert result.success == success_rate(rollouts)
        assert result.rewards == summarise(rollouts)
        assert [group.scenario.id for group in scheduled] == [group.scenario.id for group in without.groups]
        replaced += len(replacements)
    assert replaced > 1
    assert len({group.scenario.id for result in results for group in parts(result)[1]}) == replaced
    taught = [sum(group.skipped is None for group in result.groups) for result in results[1:]]
    assert [len(sizes) for _, sizes, _ in policy.jobs] == [count for count in taught if count]


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_run_that_stops_during_replacements_ends_like_an_undisturbed_one(staleness: int) -> None:
    config = ahead(staleness, REPLACING)
    async with scripted_chat(skilled(mixed)) as model:
        undisturbed = await run(model, config)
        once = Counter(json.dumps(request, sort_keys=True) for request in model.requests)
        reserve = {group.scenario.task["inbox_address"] for result in undisturbed for group in parts(result)[1]}
        first = next(result for result in undisturbed if parts(result)[1])
        scheduled, replacing = (sum(len(group.rollouts) for group in groups) for groups in parts(first))
        model.requests.clear()

        async def hangs(request: Mapping[str, Json]) -> Reply:
            if address_of(request) in reserve:
                await asyncio.Event().wait()
            return await skilled(mixed)(request)  # type: ignore[no-any-return]

        model.script = hangs
        journal, policy, results = MemoryJournal(), Trained(model.url), list[IterationResult]()
        cut = asyncio.create_task(live(config, policy, journal, results))
        # All other rollouts of the iteration are finished, so that it is known which requests are repeated.
        await until(lambda: _finished(journal, first.iteration) == scheduled)
        await until(lambda: sum(address_of(request) in reserve for request in model.requests) == replacing)
        cut.cancel()
        await asyncio.wait((cut,))
        in_flight = Counter(
            json.dumps(request, sort_keys=True) for request in model.requests if address_of(request) in reserve
        )
        model.script = skilled(mixed)
        await live(config, policy, journal, results)
        requested = Counter(json.dumps(request, sort_keys=True) for request in model.requests)
    assert list(map(figures, results)) == list(map(figures, undisturbed))
    if staleness == 0:  # else requests of another iteration are in flight as well
        assert requested == once + in_flight


def _finished(journal: MemoryJournal, iteration: int) -> int:
    return sum(name.startswith("rollout/train/") for name in journal.saved.get(iteration, ()))


class Dies(Exception):
    """The process is gone."""


class Mortal(MemoryJournal):
    """A journal whose run dies instead of saving more than a number of entries."""

    def __init__(self, lives: int) -> None:
        super().__init__()
        self.names: list[tuple[int, str]] = []
        self._lives = lives

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        if len(self.names) == self._lives:
            self._lives = 0
            raise Dies
        self.names.append((iteration, name))
        super().keep_soon(iteration, name, value)


async def test_a_run_that_dies_at_any_entry_of_the_replacements_ends_the_same() -> None:
    small = replace(CONFIG.evaluation, scenarios=0, test_scenarios=1, samples=1)
    config = replace(REPLACING, iterations=2, rollouts_per_group=2, evaluation=small)
    async with scripted_chat(skilled(mixed)) as model:
        undisturbed = await run(model, config, journal=(calm := Mortal(1_000)))
        assert parts(undisturbed[2])[1], "something is replaced"
        first = min(number for number, (iteration, _) in enumerate(calm.names) if iteration == 2)
        last = max(number for number, (_, name) in enumerate(calm.names) if name in (ALL_JUDGED, ALL_REPLACED))
        assert (2, "rollout/train.replacement/1") in calm.names[first:last]
        for lives in range(first, last + 2):
            journal, policy, results = Mortal(lives), Trained(model.url), list[IterationResult]()
            with pytest.raises((Dies, ExceptionGroup)):
                await live(config, policy, journal, results)
            await live(config, policy, journal, results)
            assert list(map(figures, results)) == list(map(figures, undisturbed))
            assert sorted(journal.names) == sorted(calm.names), "nothing is made twice"
            assert len(policy.jobs) == 2


async def live(config: RunConfig, policy: Trained, journal: MemoryJournal, results: list[IterationResult]) -> None:
    """Continue the run after these results, and add its own."""
    resume = resume_after(results) if results else None
    loop = learn_loop(config, SyntheticEmailSearch(), ReferenceJudge(), policy, journal=journal, resume=resume)
    async with aclosing(loop):
        async for result in loop:
            results.append(result)


async def test_a_run_is_resumed_after_an_iteration_with_replacements() -> None:
    async with scripted_chat(skilled(mixed)) as model:
        undisturbed = await run(model, REPLACING, policy=(policy := Trained(model.url)))
        policy._step = undisturbed[2].step
        rest = await run(model, REPLACING, policy=policy, resume=resume_after(undisturbed[:3]))
    assert list(map(figures, rest)) == list(map(figures, undisturbed[3:]))


@pytest.mark.parametrize(("size", "most"), [(3, 0), (4, 1), (5, 2)])
async def test_a_group_is_not_replaced_by_a_scenario_that_the_iteration_has(size: int, most: int) -> None:
    async with scripted_chat(skilled(lambda *_: True)) as model:
        results = await run(model, REPLACING, Few(size))
    for result in results[1:]:
        ids = Counter(group.scenario.id for group in result.groups)
        assert max(ids.values()) == 1
        assert len(parts(result)[1]) <= most
        assert {scored.inclusion for group in parts(result)[1] for scored in group.rollouts} <= {1.0}
        assert result.success == 1.0
    assert max(len(parts(result)[1]) for result in results) == most


async def test_replacements_that_all_fail_do_not_end_the_run() -> None:
    async def script(request: Mapping[str, Json]) -> Reply:
        if request["seed"] in held_out or address_of(request) in SCHEDULED:
            return await skilled(mixed)(request)  # type: ignore[no-any-return]
        return Reply(status=400)

    async with scripted_chat(skilled(mixed)) as model:
        before = await run(model, replace(CONFIG, evaluation=replace(CONFIG.evaluation, every=1)))
        trained = {address_of(request) for request in model.requests} & SCHEDULED.keys()
        held_out: set[Any] = {request["seed"] for request in model.requests if address_of(request) not in trained}
        model.script = script
        results = await run(model, REPLACING)
    assert [result.success for result in results] == [result.success for result in before]
    failed = [sum(len(group.rollouts) for group in parts(result)[1]) for result in results]
    assert [result.failed_rollouts for result in results] == failed
    assert sum(failed) > 0


def test_verdicts_on_replacements_are_dropped_with_their_rollouts_only() -> None:
    names = ["rollout/train/0", "rollout/train.replacement/0", ALL_JUDGED, ALL_REPLACED, "judge/train.replacement/0"]
    assert repair(names[1:], names[:1]).drop == {names[0], ALL_JUDGED}
    assert repair(names[:1], names[1:2]).drop == {names[1]}
    assert repair([names[0], *names[2:]], names[1:2]).drop == {names[1], *names[3:]}
    silent = json.dumps([{"scores": [{"value": None, "explanation": "broke"}], "calls": []}])
    assert unscored({ALL_JUDGED: silent, ALL_REPLACED: "[]"}) == [ALL_JUDGED]
    assert unscored({ALL_JUDGED: "[]", ALL_REPLACED: silent}) == [ALL_REPLACED]
    assert unscored({ALL_REPLACED: silent, "train.intent": "{}"}) == []
