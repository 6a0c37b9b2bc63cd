"""The learn loop with a scripted model: only sampling and training are not real."""

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from learnloop_sales.environment import SalesEmail
from learnloop_service.environment.base import Json, Outcome, Scenario, Split
from learnloop_service.environment.contract import checked
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch, build
from learnloop_service.environment.email_search.inbox import write_inbox
from learnloop_service.environment.email_search.synthetic import make_world
from learnloop_service.environment.email_search.tools import EmailEpisode
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import Endpoint, StepConflict
from learnloop_service.training.journal import NoJournal
from learnloop_service.training.loop.collector import RolloutsFailed
from learnloop_service.training.loop.evaluation import NothingScored
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import Evaluation, EvaluationConfig, IterationProgress, IterationResult, RunConfig
from tests.conditions import until
from tests.fakes.scripted_chat import Reply, ScriptedChat, call, scripted_chat
from tests.integration.training.scripted_runs import (
    CONFIG,
    Trained,
    address_of,
    figures,
    left_as_it_was,
    lucky,
    run,
    skilled,
)


class Noted(SyntheticEmailSearch):
    """Notes which scenarios are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[Split, int]] = []

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        self.drawn.append((split, count))
        return super().scenarios(split, count, seed, start)


async def hang(request: Mapping[str, Json]) -> Reply:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_baseline_and_then_the_iterations() -> None:
    reports: list[IterationProgress] = []
    async with left_as_it_was(), scripted_chat(skilled(lucky)) as model:
        policy = Trained(model.url)
        results = await run(model, policy=policy, progress=reports.append)
    assert [result.iteration for result in results] == [0, 1, 2, 3, 4]
    assert [result.step for result in results] == [0, 1, 2, 3, 4]
    assert [job[0] for job in policy.jobs] == [0, 1, 2, 3]
    rates = [1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3]
    assert [rate for _, _, rate in policy.jobs] == pytest.approx(rates)
    evaluated = [[(e.split, e.mode, e.scenarios, len(e.rollouts)) for e in result.evaluations] for result in results]
    validation = [("validation", "sampled", 4, 8), ("validation", "greedy", 4, 4)]
    test = [("test", "sampled", 3, 6), ("test", "greedy", 3, 3)]
    assert evaluated == [validation + test, [], validation, [], validation + test]
    assert model.most <= CONFIG.concurrency
    baseline, *iterations = results
    assert baseline.groups == ()
    assert baseline.success is None
    assert baseline.rewards.mean is None
    assert dict(baseline.train_metrics) == {}
    assert baseline.timing.total_s >= baseline.timing.evaluate_s > 0
    for result in iterations:
        assert [len(group.rollouts) for group in result.groups] == [4, 4, 4]
        rewards = [scored.reward for group in result.groups for scored in group.rollouts if scored.reward is not None]
        assert result.rewards.mean == pytest.approx(sum(rewards) / 12)
        assert result.success == sum(scored.success for group in result.groups for scored in group.rollouts) / 12
        assert dict(result.train_metrics) == {"loss": 0.5}
        evaluations = sum(evaluation.rollouts != () and len(evaluation.rollouts) for evaluation in result.evaluations)
        assert result.timing.prompt_tokens == 50 * (12 + evaluations)
        assert result.timing.completion_tokens == 10 * (12 + evaluations)
    steps = [(progress.iteration, progress.phase, progress.done, progress.total) for progress in reports]
    assert [step for step in steps if step[0] == 1] == [
        *((1, "rollout", count, 12) for count in range(13)),
        (1, "judge", 0, 3),
        (1, "train", 0, 1),
        (1, "train", 1, 1),
    ]


async def test_the_same_config_gives_the_same_results_whatever_runs_at_once() -> None:
    async with scripted_chat(skilled(lucky)) as model:
        one = await run(model)
        other = await run(model, RunConfig(**{**_fields(CONFIG), "concurrency": 1}))
        another_seed = await run(model, RunConfig(**{**_fields(CONFIG), "seed": 12}))
    assert list(map(figures, one)) == list(map(figures, other))
    assert list(map(figures, one)) != list(map(figures, another_seed))


def _fields(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


@pytest.mark.parametrize(("concurrency", "together"), [(64, 21), (5, 5)])
async def test_evaluations_of_a_checkpoint_run_together_within_the_concurrency(concurrency: int, together: int) -> None:
    """In the baseline both splits, sampled and greedy: 4 * (2 + 1) + 3 * (2 + 1) rollouts of one turn each."""
    answer, under_way, most = skilled(lucky), 0, 0

    async def script(request: Mapping[str, Json]) -> Reply:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await until(lambda: most >= together)
        under_way -= 1
        reply: Reply = await answer(request)
        return reply

    async with scripted_chat(script) as model:
        await run(model, replace(CONFIG, iterations=1, concurrency=concurrency))
    assert most == together


async def test_scenarios_are_drawn_for_one_iteration_and_never_again() -> None:
    environment = Noted()
    async with scripted_chat(skilled(lucky)) as model:
        results = await run(model, environment=environment)
    assert max(count for split, count in environment.drawn if split == "train") == CONFIG.groups_per_iteration
    ids = [group.scenario.id for result in results for group in result.groups]
    assert len(set(ids)) == len(ids) == 12
    assert {id.split(".")[0] for id in ids} == {"train"}
    # Each evaluation meets the same scenarios and the same luck.
    sampled = [e for result in results for e in result.evaluations if (e.split, e.mode) == ("validation", "sampled")]
    assert len({tuple(scored.rollout.scenario.id for scored in e.rollouts) for e in sampled}) == 1


async def test_a_scenario_that_is_drawn_twice_is_tried_anew(tmp_path: Path) -> None:
    """An inbox may have fewer questions than an iteration takes."""
    world = make_world("train", 0, 0)
    write_inbox(tmp_path / "inboxes" / "few.sqlite", world.emails)
    rows = [{"question": f"{n}?", "answer": world.answer, "source_ids": [world.source_id]} for n in range(12)]
    (tmp_path / "inboxes" / "few.questions.jsonl").write_text("\n".join(map(json.dumps, rows)))

    async def script(request: Mapping[str, Json]) -> Reply:
        return call("return_final_answer", answer=world.answer if request["seed"] % 2 else "no", sources=[])

    config = RunConfig(iterations=1, groups_per_iteration=24, rollouts_per_group=2, evaluation=CONFIG.evaluation)
    async with scripted_chat(script) as model:
        await run(model, config, build({"inbox": "few"}, tmp_path))
    sampled = [request["seed"] for request in model.requests if request["temperature"] == 1.0]
    splits: list[tuple[Split, int]] = [("validation", 4), ("test", 3)]
    held_out = [len({scenario.id for scenario in build({"inbox": "few"}, tmp_path).scenarios(*of, 0)}) for of in splits]
    assert sum(held_out) < 4 + 3, "the inbox has fewer held-out questions than are asked for"
    # Only what is evaluated before and after shares its seeds. A held-out question is evaluated once.
    assert len(set(sampled)) == 24 * 2 + sum(held_out) * 2


WIDE = replace(
    CONFIG,
    iterations=1,
    groups_per_iteration=1,
    concurrency=64,
    evaluation=EvaluationConfig(every=1, scenarios=18, samples=2, test_scenarios=10, baseline_width=0.35),
)
"""A run whose baseline can end early, if a batch has 8 scenarios: none of 8 that succeed are 0 to 32%."""


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("learnloop_service.training.loop.evaluation._BATCH", 8)


@pytest.mark.usefixtures("small_batches")
async def test_a_baseline_without_success_ends_early_on_the_same_scenarios() -> None:
    seeds: list[int] = []

    def later(step: int, address: str, luck: float) -> bool:
        seeds.append(int(luck * 2**53))
        return step > 0 and luck < 0.9

    async with scripted_chat(skilled(later)) as model:
        short, trained = await run(model, WIDE)
        first = set(seeds[: 8 * 3 * 2])
        seeds.clear()
        whole, _ = await run(model, replace(WIDE, evaluation=replace(WIDE.evaluation, baseline_width=None)))
    kinds = [(e.split, e.mode, e.scenarios, len(e.rollouts)) for e in short.evaluations]
    validation, test = [(8, 16), (8, 8)], [(8, 16), (8, 8)]
    modes = ("sampled", "greedy")
    assert kinds == [
        *(("validation", mode, *counts) for mode, counts in zip(modes, validation, strict=True)),
        *(("test", mode, *counts) for mode, counts in zip(modes, test, strict=True)),
    ]
    assert [evaluation.scenarios for evaluation in trained.evaluations] == [18, 18, 10, 10]
    assert first <= set(seeds[: (18 + 10) * 3]), "another number of a rollout would be another seed"
    for part, all_of_it in zip(short.evaluations, whole.evaluations, strict=True):
        ids = [scored.rollout.scenario.id for scored in all_of_it.rollouts]
        chosen = [scored.rollout.scenario.id for scored in part.rollouts]
        assert chosen == [id for id in ids if id in chosen], (
            "both modes and the verdict have the same scenarios in order"
        )
    sampled, greedy = ({scored.rollout.scenario.id for scored in e.rollouts} for e in short.evaluations[:2])
    assert sampled == greedy


@pytest.mark.usefixtures("small_batches")
async def test_a_baseline_with_some_success_has_all_scenarios_and_same_figures() -> None:
    async with scripted_chat(skilled(lucky)) as model:
        one = await run(model, WIDE)
        other = await run(model, replace(WIDE, evaluation=replace(WIDE.evaluation, baseline_width=0.0)))
    assert list(map(figures, one)) == list(map(figures, other))


@pytest.mark.usefixtures("small_batches")
async def test_a_baseline_interrupted_between_batches_ends_like_a_whole_one() -> None:
    def rarely(step: int, address: str, luck: float) -> bool:
        return luck < 0.3

    class Kept(NoJournal):
        def __init__(self, entries: dict[str, str]) -> None:
            self.entries = entries

        async def kept(self, iteration: int) -> Mapping[str, str]:
            return dict(self.entries) if iteration == 0 else {}

        def keep_soon(self, iteration: int, name: str, value: str) -> None:
            if iteration == 0:
                assert self.entries.get(name, value) == value
                self.entries[name] = value

    async def baseline(model: ScriptedChat, entries: dict[str, str]) -> IterationResult:
        loop = learn_loop(WIDE, SyntheticEmailSearch(), ReferenceJudge(), Trained(model.url), journal=Kept(entries))
        async with aclosing(loop) as results:
            return await anext(results)

    entries: dict[str, str] = {}
    async with scripted_chat(skilled(rarely)) as model:
        whole = await baseline(model, entries)
        assert all(e.scenarios > 8 for e in whole.evaluations)
        names = list(entries)
        for cut in (len(names) // 2, len(names)):
            resumed = await baseline(model, {name: entries[name] for name in names[:cut]})
            assert figures(resumed) == figures(whole)


async def test_the_best_step_is_kept_when_later_ones_are_worse() -> None:
    def skill(step: int, address: str, luck: float) -> bool:
        return luck < (0.5 if address.startswith("train") else {0: 0.1, 1: 0.4, 2: 0.95}.get(step, 0.3))

    async with scripted_chat(skilled(skill)) as model:
        results = await run(model)
    assert [result.best_step for result in results] == [0, 0, 2, 2, 2]
    final: Sequence[Evaluation] = results[-1].evaluations
    assert [(evaluation.split, evaluation.step) for evaluation in final] == [
        *(("validation", 4), ("validation", 4), ("test", 2), ("test", 2))
    ]
    assert all(evaluation.success > 0.3 for evaluation in final if evaluation.split == "test")


async def test_of_equal_successes_the_higher_reward_is_best_and_then_the_first() -> None:
    async def script(request: Mapping[str, Json]) -> Reply:
        """Never right; from step 2 on no longer malformed."""
        step = int(request["model"].rpartition("@")[2])
        if request["seed"] % 2 or step >= 2:
            return call("return_final_answer", answer="no idea", sources=[])
        return Reply(content="what?")

    async with scripted_chat(script) as model:
        results = await run(model)
    # Step 2 is the last one: nothing differs any more, so nothing is trained.
    assert [result.step for result in results] == [0, 1, 2, 2, 2]
    assert [result.best_step for result in results] == [0, 0, 2, 2, 2]
    assert results[0].evaluations[0].malformed > 0 == results[-1].evaluations[0].malformed


async def test_groups_without_signal_are_skipped_and_counted() -> None:
    def skill(step: int, address: str, luck: float) -> bool:
        """Right always in one inbox of three, never in the next, by luck in the last."""
        number = int(address.split("@")[0].rpartition(".")[2]) % 3
        return [True, False, luck < 0.5][number]

    async with scripted_chat(skilled(skill)) as model:
        policy = Trained(model.url)
        results = await run(model, policy=policy)
    assert [sizes for _, sizes, _ in policy.jobs] == [[4]] * 4
    assert [dict(result.skipped_groups) for result in results] == [{}, *[{"no_signal": 2}] * 4]
    assert [group.skipped for group in results[1].groups] == ["no_signal", "no_signal", None]


async def test_without_any_signal_nothing_is_trained() -> None:
    async with scripted_chat(skilled(lambda *_: True)) as model:
        policy = Trained(model.url)
        results = await run(model, policy=policy)
    assert policy.jobs == []
    assert [result.step for result in results] == [0] * 5
    assert [dict(result.skipped_groups) for result in results[1:]] == [{"no_signal": 3}] * 4
    assert results[-1].success == 1.0


async def test_failed_rollouts_are_counted_and_left_out() -> None:
    answer = skilled(lambda _, __, luck: luck > 0.6)

    async def script(request: Mapping[str, Json]) -> Reply:
        return Reply(status=400) if request["seed"] / 2**53 < 0.3 else await answer(request)

    async with scripted_chat(script) as model:
        policy = Trained(model.url)
        results = await run(model, policy=policy)
    for result in results:
        rollouts = [scored for group in result.groups for scored in group.rollouts]
        rollouts += [scored for evaluation in result.evaluations for scored in evaluation.rollouts]
        broken = [scored for scored in rollouts if scored.rollout.error is not None]
        assert result.failed_rollouts == len(broken)
        assert all(scored.reward is None for scored in broken)
    assert sum(result.failed_rollouts for result in results) > 0
    assert 0 < sum(sum(sizes) for _, sizes, _ in policy.jobs) < 48


@pytest.mark.parametrize("until", [0, 1])
async def test_when_every_rollout_fails_the_loop_says_why(until: int) -> None:
    answer = skilled(lucky)

    async def script(request: Mapping[str, Json]) -> Reply:
        """Fails at the baseline, or only in training."""
        return (
            Reply(status=400) if address_of(request).startswith(("test.", "train.")[until]) else await answer(request)
        )

    async with left_as_it_was(), scripted_chat(script) as model:
        results = learn_loop(CONFIG, SyntheticEmailSearch(), ReferenceJudge(), Trained(model.url))
        for _ in range(until):
            await anext(results)
        with pytest.raises(RolloutsFailed) as caught:
            await anext(results)
    count = CONFIG.groups_per_iteration * CONFIG.rollouts_per_group if until else 6
    assert str(caught.value).startswith(f"all {count} rollouts of iteration {until} failed, the first: BadRequestError")
    assert "as scripted" in str(caught.value)


async def test_a_judge_that_can_score_nothing_ends_the_loop() -> None:
    async def script(request: Mapping[str, Json]) -> Reply:
        return Reply(content="what?")

    async with scripted_chat(script) as model:
        with pytest.raises(NothingScored, match=r"the judge scored no rollout: .*no reference answer"):
            await run(model, environment=SalesEmail())


async def test_what_the_backend_raises_passes_through() -> None:
    async with left_as_it_was(), scripted_chat(skilled(lucky)) as model:
        policy = Trained(model.url)
        policy.error = StepConflict("the model is at step 3, not 0")
        with pytest.raises(StepConflict, match="at step 3"):
            await run(model, policy=policy)


async def test_cancelling_leaves_no_rollout_running() -> None:
    async with left_as_it_was(), scripted_chat(hang) as model:
        work = asyncio.create_task(run(model))
        await until(lambda: model.answering >= CONFIG.concurrency)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await until(lambda: not model.answering)
        assert len(model.requests) == CONFIG.concurrency


async def test_a_consumer_that_has_seen_enough_leaves_nothing_running() -> None:
    async with left_as_it_was(), scripted_chat(skilled(lucky)) as model:
        results = learn_loop(CONFIG, SyntheticEmailSearch(), ReferenceJudge(), Trained(model.url))
        async with aclosing(results):
            async for result in results:
                if result.iteration == 1:
                    break
        requests = len(model.requests)
        assert model.answering == 0
        assert len(model.requests) == requests == 21 + 12


async def test_a_policy_that_was_trained_before_goes_on_from_its_step() -> None:
    class Old(Trained):
        async def step(self) -> int:
            return 7

        def endpoint(self, step: int | None = None) -> Endpoint:
            assert step is not None
            assert step >= 7
            return super().endpoint(step)

    async with scripted_chat(skilled(lambda _, __, luck: luck < 0.5)) as model:
        results = await run(model, policy=Old(model.url))
    assert [result.step for result in results] == [7, 8, 9, 10, 11]
    assert results[0].best_step == 7


class Faulty(SyntheticEmailSearch):
    """An environment with a slip in one of its methods."""

    def __init__(self, slip: str) -> None:
        super().__init__()
        self._slip = slip

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        if self._slip == "scenarios" and split == "train":
            raise KeyError("chapter")
        return super().scenarios(split, count, seed, start)

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> EmailEpisode:
        if self._slip == "episode":
            raise AttributeError("no board")
        return super().episode(scenario, max_turns)

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        return {"speed": math.nan} if self._slip == "reward" else super().reward(outcome, score)


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        ("scenarios", r"scenarios\(\) raised KeyError: 'chapter'"),
        ("episode", r"episode\(\) raised AttributeError: no board"),
        ("reward", r"reward\(\) returned {'speed': nan}; expected a dict of finite numbers by name"),
    ],
)
async def test_a_slip_of_an_environment_ends_the_loop_and_names_the_method(slip: str, message: str) -> None:
    async with scripted_chat(skilled(lambda *_: True)) as model, left_as_it_was():
        with pytest.raises(PluginFault, match=rf"^The environment 'chapters': {message}"):
            await run(model, environment=checked("chapters", Faulty(slip)))
