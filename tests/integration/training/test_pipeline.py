"""Rollouts that run ahead of training, with a scripted model: only sampling and training are not real."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from learnloop_service.environment.base import Environment, Json, Rewarded, Scenario
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.email_search.tools import EmailEpisode
from learnloop_service.judges.base import Candidate, Judgement
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import (
    BackendUnavailable,
    JobForgotten,
    OnTrained,
    StepConflict,
    TrainingFailed,
    TrainingInterrupted,
    TrainOutcome,
)
from learnloop_service.training.budget import Unlimited
from learnloop_service.training.loop.collector import RolloutsFailed
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import IterationProgress, IterationResult
from tests.conditions import until
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.integration.training.scripted_runs import (
    CONFIG,
    MemoryJournal,
    Trained,
    address_of,
    ahead,
    figures,
    iterations_of,
    left_as_it_was,
    lucky,
    run,
    skilled,
)


class Observed(Trained):
    """Trains only once `may_train` says that it may; notes while which iteration each request came."""

    def __init__(self, url: str, may_train: Callable[["Observed", int], bool] = lambda *_: True) -> None:
        super().__init__(url)
        self.trains: int | None = None
        self.asked: dict[int, list[tuple[int | None, int]]] = defaultdict(list)
        """By the iteration of the rollout: the step that trained meanwhile led to, and the step that was asked."""
        self._may_train = may_train
        self._iterations = iterations_of(CONFIG)

    def noted(self, answer: Callable[[Mapping[str, Json]], Any]) -> Callable[[Mapping[str, Json]], Any]:
        async def script(request: Mapping[str, Json]) -> Reply:
            if (iteration := self._iterations.get(address_of(request))) is not None:
                self.asked[iteration].append((self.trains, int(request["model"].rpartition("@")[2])))
            reply: Reply = await answer(request)
            return reply

        return script

    async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
        self.trains = expected_step + 1
        await until(lambda: self._may_train(self, expected_step + 1))
        self.trains = None
        return await super().follow(job_id, expected_step)


@pytest.mark.parametrize("staleness", [1, 2, 3])
async def test_the_next_rollouts_run_while_a_step_trains_within_the_staleness(staleness: int) -> None:
    per_iteration = CONFIG.groups_per_iteration * CONFIG.rollouts_per_group

    def all_ahead_are_made(policy: Observed, iteration: int) -> bool:
        """Where rollouts waited for training, this never came."""
        last = min(iteration + staleness, CONFIG.iterations)
        return all(len(policy.asked[later]) == per_iteration for later in range(iteration + 1, last + 1))

    async with left_as_it_was(), scripted_chat(skilled(lucky)) as model:
        policy = Observed(model.url, all_ahead_are_made)
        model.script = policy.noted(model.script)
        loop = learn_loop(ahead(staleness), SyntheticEmailSearch(), ReferenceJudge(), policy)
        results = []
        async with aclosing(loop):
            async for result in loop:
                results.append(result)
                begun = max((iteration for iteration, requests in policy.asked.items() if requests), default=0)
                assert begun <= result.iteration + 1 + staleness
    assert [result.step for result in results] == [0, 1, 2, 3, 4]
    expected = [max(0, iteration - 1 - staleness) for iteration in range(1, 5)]
    assert [result.sampled_step for result in results] == [None, *expected]
    assert [result.staleness for result in results] == [None, *(n - step for n, step in enumerate(expected))]
    assert {n: {step for _, step in policy.asked[n]} for n in range(1, 5)} == {
        n: {step} for n, step in enumerate(expected, start=1)
    }
    assert model.most <= CONFIG.concurrency
    assert all(result.timing.ahead_s > 0 for result in results[2:])


async def test_without_staleness_nothing_is_asked_while_a_step_trains() -> None:
    async with scripted_chat(skilled(lucky)) as model:
        policy = Observed(model.url)
        model.script = policy.noted(model.script)
        results = await run(model, policy=policy)
    assert {trained for requests in policy.asked.values() for trained, _ in requests} == {None}
    assert [(result.sampled_step, result.staleness) for result in results] == [
        (None, None),
        *((n, 0) for n in range(4)),
    ]


async def test_what_runs_ahead_of_a_run_that_fails_is_given_up() -> None:
    class Fails(Observed):
        async def follow(self, job_id: str, expected_step: int) -> TrainOutcome:
            raise TrainingFailed("out of memory")

    async with left_as_it_was(), scripted_chat(skilled(lucky)) as model:
        with pytest.raises(TrainingFailed, match="out of memory"):
            await run(model, ahead(1), policy=Fails(model.url))


async def test_the_next_rollouts_run_during_the_saving_and_are_judged_in_turn() -> None:
    results: list[IterationResult] = []
    judge, progress = InTurn(results), list[IterationProgress]()
    async with left_as_it_was(), scripted_chat(answer := skilled(lucky)) as model:
        policy = Observed(model.url)
        model.script = policy.noted(answer)
        loop = learn_loop(CONFIG, SyntheticEmailSearch(), judge, policy, progress=progress.append)
        async with aclosing(loop):
            async for result in loop:
                # Where rollouts waited for the saving of the iteration before, this never came.
                await until(partial(next_are_asked, policy, result.step))
                results.append(result)
        model.script = answer
        one_after_the_other = await run(model, budget=Limited())
    assert list(map(figures, results)) == list(map(figures, one_after_the_other))
    assert [result.timing.ahead_s > 0 for result in results] == [False, True, True, True, True]
    assert [(result.sampled_step, result.staleness) for result in results[1:]] == [(n, 0) for n in range(4)]
    assert judge.saved == {n: {n} for n in (1, 2, 3, 4)}
    order = [report.iteration for report in progress]
    assert order == sorted(order)


async def test_the_next_rollouts_are_made_beside_an_evaluation() -> None:
    config, evaluated = replace(CONFIG, concurrency=64), iterations_of(CONFIG)
    async with left_as_it_was(), scripted_chat(answer := skilled(lucky)) as model:
        policy = Observed(model.url)

        async def evaluates_last(request: Mapping[str, Json]) -> Reply:
            step = int(request["model"].rpartition("@")[2])
            if step == 2 and address_of(request) not in evaluated:
                # Where rollouts waited for the evaluation of the iteration before, this never came.
                await until(partial(next_are_asked, policy, step))
            reply: Reply = await answer(request)
            return reply

        model.script = policy.noted(evaluates_last)
        results = await run(model, config, policy=policy)
        model.script = answer
        one_after_the_other = await run(model, config, budget=Limited())
    assert list(map(figures, results)) == list(map(figures, one_after_the_other))


async def test_what_a_run_learns_does_not_depend_on_timing() -> None:
    async with scripted_chat(answer := skilled(lucky)) as model:
        late = Observed(model.url, lambda policy, n: n == CONFIG.iterations or len(policy.asked[n + 1]) == 12)
        model.script = late.noted(answer)
        one = await run(model, ahead(2), policy=late)
        model.script = answer
        other = await run(model, ahead(2, replace(CONFIG, concurrency=1)))
        exact = await run(model)
    assert list(map(figures, one)) == list(map(figures, other))
    assert list(map(figures, one)) != list(map(figures, exact))


async def test_a_step_that_was_not_trained_makes_nothing_staler() -> None:
    async with scripted_chat(skilled(lambda *_: True)) as model:
        results = await run(model, ahead(2))
    assert [(result.sampled_step, result.staleness) for result in results[1:]] == [(0, 0)] * 4


async def test_a_failure_ahead_is_found_at_its_own_iteration() -> None:
    answer, iterations = skilled(lucky), iterations_of(CONFIG)
    failed = asyncio.Event()

    async def script(request: Mapping[str, Json]) -> Reply:
        if iterations.get(address_of(request)) == 2:
            failed.set()
            return Reply(status=400)
        reply: Reply = await answer(request)
        return reply

    async with left_as_it_was(), scripted_chat(script) as model:
        policy = Observed(model.url, lambda *_: failed.is_set())
        model.script = policy.noted(script)
        loop = learn_loop(ahead(1), SyntheticEmailSearch(), ReferenceJudge(), policy)
        async with aclosing(loop):
            assert [(await anext(loop)).iteration, (await anext(loop)).step] == [0, 1]
            with pytest.raises(RolloutsFailed, match="all 12 rollouts of iteration 2 failed"):
                await anext(loop)
    assert [job[0] for job in policy.jobs] == [0]


async def test_a_loop_that_is_closed_leaves_nothing_running_ahead() -> None:
    answer, iterations, hanging = skilled(lucky), iterations_of(CONFIG), asyncio.Event()

    async def script(request: Mapping[str, Json]) -> Reply:
        if iterations.get(address_of(request)) == 2:
            hanging.set()
            await asyncio.Event().wait()
        reply: Reply = await answer(request)
        return reply

    async with scripted_chat(script) as model, left_as_it_was():
        loop = learn_loop(ahead(1), SyntheticEmailSearch(), ReferenceJudge(), Trained(model.url))
        async with aclosing(loop):
            await anext(loop)
            assert (await anext(loop)).iteration == 1
            await hanging.wait()
            assert model.answering > 0
        await until(lambda: model.answering == 0)


async def test_progress_is_that_of_the_current_iteration() -> None:
    reports: list[IterationProgress] = []
    async with scripted_chat(skilled(lucky)) as model:
        policy = Observed(model.url, lambda policy, n: n == CONFIG.iterations or len(policy.asked[n + 1]) == 12)
        model.script = policy.noted(model.script)
        await run(model, ahead(1), policy=policy, progress=reports.append)
    order = [progress.iteration for progress in reports]
    assert order == sorted(order)
    assert {progress.iteration for progress in reports if progress.phase == "judge"} == {0, 1, 2, 3, 4}


class Lessons(SyntheticEmailSearch):
    """Learns how often it reflected, and notes what each attempt at a training scenario saw of that."""

    def __init__(self, lessons_met: dict[str, set[int]], closed: list[int]) -> None:
        super().__init__()
        self.lessons = 0
        self._seen, self._closed = lessons_met, closed

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> EmailEpisode:
        self._seen[scenario.id].add(self.lessons)
        return super().episode(scenario, max_turns)

    def showcase(self, seed: int) -> Scenario:
        return self.scenarios("test", 1, seed)[0]

    def reflect(self, rewarded: Sequence[Rewarded]) -> None:
        self.lessons += 1

    def state(self) -> dict[str, Json]:
        return {"lessons": self.lessons}

    def restore(self, state: Mapping[str, Json]) -> None:
        self.lessons = state["lessons"]

    def close(self) -> None:
        self._closed.append(self.lessons)
        super().close()


async def test_rollouts_have_an_environment_that_is_as_old_as_their_policy() -> None:
    """Its state is as old as the policy while the iterations before still learn; evaluations see the newest."""
    lessons_met: dict[str, set[int]] = defaultdict(set)
    closed: list[int] = []

    def another() -> Environment:
        return Lessons(lessons_met, closed)

    async with scripted_chat(skilled(lucky)) as model:
        policy = Observed(model.url, lambda policy, n: n == CONFIG.iterations or len(policy.asked[n + 1]) == 12)
        model.script = policy.noted(model.script)
        results = await run(model, ahead(1), another(), policy=policy, another_environment=another)
    assert [result.reflection and result.reflection.state["lessons"] for result in results] == [1, 2, 3, 4, 5]
    trained = [{frozenset(lessons_met[group.scenario.id]) for group in result.groups} for result in results[1:]]
    assert trained == [{frozenset({n})} for n in (1, 1, 2, 3)]
    assert sorted(closed) == [1, 1, 2, 3], "one for each iteration's rollouts, closed when they were judged"
    tested = {scored.rollout.scenario.id for e in results[-1].evaluations if e.split == "test" for scored in e.rollouts}
    assert {5} < set().union(*(lessons_met[id] for id in tested))


async def test_rollouts_cannot_run_ahead_in_the_only_environment_that_learns() -> None:
    async with scripted_chat(skilled(lucky)) as model:
        with pytest.raises(ValueError, match="it learns, and there is only one"):
            await run(model, ahead(1), Lessons(defaultdict(set), []))


class SlowJudge(ReferenceJudge):
    """Judges the rollouts of an iteration only when that is allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.allowed = asyncio.Event(), asyncio.Event()
        self._iterations = iterations_of(CONFIG)

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        if self._iterations.get(scenario.task["inbox_address"]) == 2:
            self.asked.set()
            await self.allowed.wait()
        return await super().judge(scenario, candidates)


async def test_a_slow_judge_is_waited_for_beside_the_training() -> None:
    judge = SlowJudge()
    async with scripted_chat(skilled(lucky)) as model:
        policy = Observed(model.url, lambda policy, n: judge.asked.is_set())
        loop = learn_loop(ahead(1), SyntheticEmailSearch(), judge, policy)
        async with aclosing(loop):
            assert [(await anext(loop)).iteration, (await anext(loop)).iteration] == [0, 1]
            judge.allowed.set()
            assert (await anext(loop)).staleness == 1


class Shown(Lessons):
    """Shows a scenario that nothing else is made of."""

    def __init__(self, lessons_met: dict[str, set[int]]) -> None:
        super().__init__(lessons_met, [])

    def showcase(self, seed: int) -> Scenario:
        return self.scenarios("train", 1, seed, 1000)[0]


SHOWN = Shown(defaultdict(set)).showcase(CONFIG.seed).task["inbox_address"]
PER_ITERATION = CONFIG.groups_per_iteration * CONFIG.rollouts_per_group


class Showing(Observed):
    """Its model answers a showcase only once `may_show` says that it may, of the step that is shown."""

    def __init__(self, url: str, may_show: Callable[["Showing", int], bool]) -> None:
        super().__init__(url)
        self._may_show = may_show

    def showing(self, answer: Callable[[Mapping[str, Json]], Any]) -> Callable[[Mapping[str, Json]], Any]:
        async def script(request: Mapping[str, Json]) -> Reply:
            if address_of(request) == SHOWN:
                step = int(request["model"].rpartition("@")[2])
                await until(lambda: self._may_show(self, step))
            reply: Reply = await answer(request)
            return reply

        return self.noted(script)


def next_are_asked(policy: Observed, step: int) -> bool:
    """Where rollouts waited for the showcase of the iteration before, this never came."""
    return step == CONFIG.iterations or len(policy.asked[step + 1]) == PER_ITERATION


class InTurn(ReferenceJudge):
    """Notes how many iterations were saved when it judged the rollouts of each."""

    def __init__(self, results: list[IterationResult]) -> None:
        super().__init__()
        self.saved: dict[int, set[int]] = defaultdict(set)
        self._results = results
        self._iterations = iterations_of(CONFIG)

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        if (iteration := self._iterations.get(scenario.task["inbox_address"])) is not None:
            self.saved[iteration].add(len(self._results))
        return await super().judge(scenario, candidates)


async def test_the_next_rollouts_run_during_the_showcase_and_are_judged_in_turn() -> None:
    lessons_met: dict[str, set[int]] = defaultdict(set)
    results: list[IterationResult] = []
    judge, progress = InTurn(results), list[IterationProgress]()
    async with left_as_it_was(), scripted_chat(answer := skilled(lucky)) as model:
        policy = Showing(model.url, next_are_asked)
        model.script = policy.showing(answer)
        loop = learn_loop(CONFIG, Shown(lessons_met), judge, policy, progress=progress.append)
        async with aclosing(loop):
            async for result in loop:
                results.append(result)
        model.script = answer
        one_after_the_other = await run(model, environment=Shown(defaultdict(set)), budget=Limited())
    assert list(map(figures, results)) == list(map(figures, one_after_the_other))
    assert [result.timing.ahead_s > 0 for result in results] == [False, True, True, True, True]
    assert [(result.sampled_step, result.staleness) for result in results[1:]] == [(n, 0) for n in range(4)]
    assert {trained for requests in policy.asked.values() for trained, _ in requests} == {None}, (
        "none while a step trained"
    )
    trained = [{frozenset(lessons_met[group.scenario.id]) for group in result.groups} for result in results[1:]]
    assert trained == [{frozenset({n})} for n in (1, 2, 3, 4)]
    assert judge.saved == {n: {n} for n in (1, 2, 3, 4)}
    order = [report.iteration for report in progress]
    assert order == sorted(order)


class Limited(Unlimited):
    """A budget that is never reached, which the loop cannot know."""

    limited = True


async def test_a_run_with_a_budget_begins_rollouts_in_their_turn() -> None:
    async with scripted_chat(skilled(lucky)) as model:
        results = await run(model, environment=Shown(defaultdict(set)), budget=Limited())
    assert {result.timing.ahead_s for result in results} == {0.0}


async def test_verdicts_are_written_with_the_intent_to_train() -> None:
    journal = MemoryJournal()
    async with scripted_chat(skilled(lucky)) as model:
        await run(model, environment=Shown(defaultdict(set)), journal=journal)
    assert journal.waited == ["train.intent", "train.job", "train"]
    entries = list(journal.saved[1])
    assert entries.index("judge/train") < entries.index("train.intent")


async def test_rollouts_that_began_beside_a_showcase_survive_the_loop() -> None:
    async with scripted_chat(answer := skilled(lucky)) as model:
        undisturbed = await run(model, environment=Shown(defaultdict(set)))
        journal = MemoryJournal()
        policy = Showing(model.url, lambda *_: False)
        model.script = policy.showing(answer)
        loop = learn_loop(CONFIG, Shown(defaultdict(set)), ReferenceJudge(), policy, journal=journal)
        async with left_as_it_was(), aclosing(loop):
            saving = asyncio.ensure_future(anext(loop))
            await until(lambda: sum(name.startswith("rollout/train/") for name in journal.saved[1]) == PER_ITERATION)
            saving.cancel()
            await asyncio.wait((saving,))
        policy = Showing(model.url, lambda *_: True)
        model.script = policy.showing(answer)
        resumed = await run(model, environment=Shown(defaultdict(set)), policy=policy, journal=journal)
    assert list(map(figures, resumed)) == list(map(figures, undisturbed))
    assert [len(policy.asked[n]) for n in (1, 2)] == [0, PER_ITERATION]


class Early(Observed):
    """Its steps can be sampled before they are durable, which each becomes once `becomes_durable` returns."""

    samples_early = True

    def __init__(self, url: str, becomes_durable: Callable[["Early", int], Awaitable[None]]) -> None:
        super().__init__(url)
        self._becomes_durable = becomes_durable

    async def follow(
        self, job_id: str, expected_step: int, report: Any = None, trained: OnTrained | None = None
    ) -> TrainOutcome:
        outcome = await super().follow(job_id, expected_step)
        if trained is not None:
            trained(outcome)
        await self._becomes_durable(self, outcome.step)
        return outcome


async def test_a_checkpoint_is_written_beside_the_next_rollouts_and_waited_for() -> None:
    results, journal = list[IterationResult](), MemoryJournal()

    async def durable(policy: Early, step: int) -> None:
        # Where rollouts waited for the checkpoint, this never came.
        await until(partial(next_are_asked, policy, step))
        assert [result.step for result in results] == list(range(step)), "nothing is saved before it is durable"
        assert "train" not in journal.saved[step]
        assert not journal.saved[step + 1], "what is made of a step that may be lost is not kept"

    async with left_as_it_was(), scripted_chat(answer := skilled(lucky)) as model:
        policy = Early(model.url, durable)
        model.script = policy.noted(answer)
        loop = learn_loop(CONFIG, SyntheticEmailSearch(), ReferenceJudge(), policy, journal=journal)
        async with aclosing(loop):
            async for result in loop:
                results.append(result)
        model.script = answer
        one_after_the_other = await run(model)
    assert list(map(figures, results)) == list(map(figures, one_after_the_other))
    for iteration in range(1, CONFIG.iterations + 1):
        names = list(journal.saved[iteration])
        assert sum(name.startswith("rollout/train/") for name in names) == PER_ITERATION
        assert "train" in names


@pytest.mark.parametrize("loses", [TrainingInterrupted("no space left"), StepConflict("0"), JobForgotten("restarted")])
async def test_what_was_sampled_from_a_step_that_is_lost_is_given_up(loses: Exception) -> None:
    """Nothing continues from it, even if another engine has the step by now, or it has to be trained again."""
    journal = MemoryJournal()

    async def lost(policy: Early, step: int) -> None:
        await until(partial(next_are_asked, policy, step))
        raise loses

    async with left_as_it_was(), scripted_chat(answer := skilled(lucky)) as model:
        policy = Early(model.url, lost)
        model.script = policy.noted(answer)
        with pytest.raises(
            BackendUnavailable, match="trained again" if isinstance(loses, StepConflict) else str(loses)
        ):
            await run(model, policy=policy, journal=journal)
    assert len(policy.jobs) == 1
    assert ("train.withdrawn" in journal.saved[1]) == isinstance(loses, TrainingInterrupted)
    assert not {name for name in journal.saved[1] if not name.startswith(("train", "rollout/train/", "judge/train"))}
    assert not journal.saved[2]


async def test_an_evaluation_that_fails_for_a_lost_step_does_not_fail_the_run() -> None:
    async def answers(request: Mapping[str, Json]) -> Reply:
        if request["model"].endswith("@1"):
            failed.set()
            raise ValueError("no model p/m@1")
        reply: Reply = await skilled(lucky)(request)
        return reply

    async def lost(policy: Early, step: int) -> None:
        await failed.wait()
        await until(lambda: len(policy.asked) > 1)
        raise TrainingInterrupted("no space left")

    failed = asyncio.Event()
    async with left_as_it_was(), scripted_chat(answers) as model:
        policy = Early(model.url, lost)
        model.script = policy.noted(answers)
        with pytest.raises(TrainingInterrupted):
            await run(model, replace(CONFIG, evaluation=replace(CONFIG.evaluation, every=1)), policy=policy)


async def test_a_run_with_a_budget_waits_for_the_checkpoint() -> None:
    async def durable(policy: Early, step: int) -> None:
        policy.trains = step
        await asyncio.sleep(0)
        policy.trains = None

    async with scripted_chat(answer := skilled(lucky)) as model:
        policy = Early(model.url, durable)
        model.script = policy.noted(answer)
        results = await run(model, policy=policy, budget=Limited())
    assert {result.timing.ahead_s for result in results} == {0.0}
    assert {trained for requests in policy.asked.values() for trained, _ in requests} == {None}
