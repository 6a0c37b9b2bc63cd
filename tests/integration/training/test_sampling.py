"""Runs that draw scenarios by difficulty, with a scripted model: only sampling and training are not real."""

from contextlib import aclosing
from dataclasses import replace

import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import TrainRequest
from learnloop_service.training.diagnosis.collect import facts_of
from learnloop_service.training.inclusion import is_replacement
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import IterationResult, Resume, RunConfig
from tests.fakes.scripted_chat import scripted_chat
from tests.integration.training.scripted_runs import (
    CONFIG,
    Few,
    MemoryJournal,
    Trained,
    ahead,
    figures,
    mixed,
    resume_after,
    run,
    skilled,
)

SAMPLING = replace(CONFIG, iterations=6, replace_groups=True, scenario_sampling="difficulty")


def drawn(result: IterationResult) -> list[tuple[str, float]]:
    return [(group.scenario.id, group.rollouts[0].inclusion) for group in result.groups]


def resumed(results: list[IterationResult], config: RunConfig) -> Resume:
    facts = [facts_of(result, config, {}) for result in results]
    groups = {of.iteration: (*of.groups, *of.replacements) for of in facts}
    return replace(resume_after(results), groups=groups)


@pytest.mark.parametrize("staleness", [0, 2])
async def test_a_run_that_dies_after_any_iteration_draws_the_same(staleness: int) -> None:
    config = ahead(staleness, SAMPLING)
    async with scripted_chat(skilled(mixed)) as model:
        undisturbed = await run(model, config)
        for lived in range(1, len(undisturbed)):
            policy, journal, results = Trained(model.url), MemoryJournal(), list[IterationResult]()
            loop = learn_loop(config, SyntheticEmailSearch(), ReferenceJudge(), policy, journal=journal)
            async with aclosing(loop):
                while len(results) < lived:
                    results.append(await anext(loop))
            results += await run(model, config, policy=policy, journal=journal, resume=resumed(results, config))
            assert list(map(figures, results)) == list(map(figures, undisturbed))
            assert list(map(drawn, results)) == list(map(drawn, undisturbed))
    assert any(is_replacement(group) for result in undisturbed for group in result.groups)
    assert {inclusion for _, inclusion in drawn(undisturbed[1])} == {3 / 18}


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_of_no_more_scenarios_than_groups_all_are_rolled_out_as_in_passes(size: int) -> None:
    async with scripted_chat(skilled(mixed)) as model:
        results = await run(model, SAMPLING, Few(size))
        passes = await run(model, replace(SAMPLING, scenario_sampling="passes"), Few(size))
    assert list(map(figures, results)) == list(map(figures, passes))


@pytest.mark.parametrize("right", [True, False])
async def test_a_run_without_any_signal_draws_and_ends(right: bool) -> None:
    async with scripted_chat(skilled(lambda *_: right)) as model:
        results = await run(model, SAMPLING, Few(5))
    for result in results[1:]:
        ids = [scenario for scenario, _ in drawn(result)]
        assert len({*ids}) == len(ids)
        assert len(ids) == (3 if result.iteration == 1 else 5)
        assert result.success == right


class Noting(Trained):
    """Notes the least spread of each step."""

    spreads: list[float]

    async def submit(self, request: TrainRequest) -> str:
        self.spreads.append(request.options["least_spread"])
        return await super().submit(request)


async def test_a_least_spread_is_a_share_of_the_range_that_the_run_has_seen() -> None:
    config = replace(CONFIG, train_options={"least_spread": 0.1})
    async with scripted_chat(skilled(mixed)) as model:
        policy = Noting(model.url)
        policy.spreads = []
        results = await run(model, config, policy=policy)
        later = Noting(model.url)
        later.spreads, later._step = [], results[2].step
        await run(model, config, policy=later, resume=resumed(results[:3], config))
    rewards, expected = list[float](), list[float]()
    for result in results[1:]:
        rewards += [scored.reward or 0.0 for group in result.groups for scored in group.rollouts]
        if any(group.skipped is None for group in result.groups):
            expected.append(0.1 * (max(rewards) - min(rewards)))
    assert policy.spreads == pytest.approx(expected)
    assert later.spreads == policy.spreads[-len(later.spreads) :]


async def test_figures_of_training_weigh_by_the_inverse_probability() -> None:
    async with scripted_chat(skilled(mixed)) as model:
        results = await run(model, SAMPLING, Few(12))
    assert len({inclusion for result in results[1:] for _, inclusion in drawn(result)}) > 3
    for result in results[1:]:
        scheduled = [group for group in result.groups if not is_replacement(group)]
        weights = [1 / group.rollouts[0].inclusion for group in scheduled]
        successes = [sum(scored.success for scored in group.rollouts) / len(group.rollouts) for group in scheduled]
        expected = sum(w * s for w, s in zip(weights, successes, strict=True)) / sum(weights)
        assert result.success == pytest.approx(expected)
        facts = facts_of(result, SAMPLING, {})
        assert [group.represents for group in facts.groups] == pytest.approx(weights)
        assert {group.represents for group in facts.replacements} <= {0.0}
