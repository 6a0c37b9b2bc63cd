"""A run that ends when little is left to learn, with a scripted model: only sampling and training are not real."""

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.diagnosis.collect import facts_of
from learnloop_service.training.diagnosis.diagnose import diagnose
from learnloop_service.training.diagnosis.diagnosis import Cause, DiagnosisSettings
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import IterationResult, RunConfig
from tests.fakes.scripted_chat import scripted_chat
from tests.integration.training.scripted_runs import (
    CONFIG,
    MemoryJournal,
    Trained,
    ahead,
    figures,
    resume_after,
    run,
    skilled,
)

ENDING = replace(
    CONFIG,
    iterations=12,
    groups_per_iteration=8,
    rollouts_per_group=2,
    end_when_learned=True,
    evaluation=replace(CONFIG.evaluation, every=5),
)


def soon_perfect(step: int, address: str, luck: float) -> bool:
    return step >= 2 or luck < 0.5


def named_at(results: list[IterationResult], config: RunConfig) -> int:
    """The iteration at which the run is diagnosed as too easy."""
    facts = [facts_of(result, config, {}) for result in results]
    [diagnosis] = [
        candidate for candidate in diagnose(facts, DiagnosisSettings(config, "m")) if candidate.cause == Cause.TOO_EASY
    ]
    return diagnosis.named_at_iteration


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_run_ends_with_the_diagnosis_and_evaluates_its_last_iteration(staleness: int) -> None:
    config = ahead(staleness, ENDING)
    async with scripted_chat(skilled(soon_perfect)) as model:
        results = await run(model, config)
        usual = await run(model, replace(config, end_when_learned=False))
        assert not asyncio.all_tasks() - {asyncio.current_task()} or model.answering == 0
    last = results[-1].iteration
    assert last == named_at(usual, config) < config.iterations
    assert list(map(figures, results[:-1])) == list(map(figures, usual[:last]))
    assert {(evaluation.split, evaluation.mode) for evaluation in results[-1].evaluations} == {
        (split, mode) for split in ("validation", "test") for mode in ("sampled", "greedy")
    }
    assert usual[-1].iteration == config.iterations


async def test_a_run_that_dies_after_any_iteration_ends_at_the_same_one() -> None:
    async with scripted_chat(skilled(soon_perfect)) as model:
        undisturbed = await run(model, ENDING)
        for lived in range(1, len(undisturbed) + 1):
            policy, journal, results = Trained(model.url), MemoryJournal(), list[IterationResult]()
            loop = learn_loop(ENDING, SyntheticEmailSearch(), ReferenceJudge(), policy, journal=journal)
            async with aclosing(loop):
                while len(results) < lived:
                    results.append(await anext(loop))
            facts = [facts_of(result, ENDING, {}) for result in results]
            groups = {fact.iteration: (*fact.groups, *fact.replacements) for fact in facts}
            resume = replace(resume_after(results), groups=groups)
            results += await run(model, ENDING, policy=policy, journal=journal, resume=resume)
            assert list(map(figures, results)) == list(map(figures, undisturbed))


async def test_a_run_that_keeps_failing_some_does_not_end_early() -> None:
    async with scripted_chat(skilled(lambda step, address, luck: luck < 0.5)) as model:
        results = await run(model, replace(ENDING, iterations=3))
    assert results[-1].iteration == 3
