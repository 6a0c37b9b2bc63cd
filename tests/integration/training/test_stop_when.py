"""Runs that end by their `stop_when`, with a scripted model: only sampling and training are not real."""

from contextlib import aclosing
from dataclasses import replace

import pytest

from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.diagnosis.collect import facts_of
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.statistics.learning_curve import CurvePoint
from learnloop_service.training.stopping import Stopping
from learnloop_service.training.types import IterationResult, RunConfig, StopWhen
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
    stop_when=StopWhen(target=0.6),
    evaluation=replace(CONFIG.evaluation, every=2, scenarios=8, samples=2),
)


def soon_perfect(step: int, address: str, luck: float) -> bool:
    return step >= 2 or luck < 0.3


def saved_points(results: list[IterationResult], config: RunConfig) -> list[CurvePoint]:
    """What a service reads of the saved iterations."""
    facts = [facts_of(result, config, {}).held_out for result in results]
    return [
        CurvePoint(result.iteration, result.success, result.rewards.count, held_out.sampled if held_out else None)
        for result, held_out in zip(results, facts, strict=True)
    ]


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_run_ends_once_its_target_is_shown_and_tests_its_best_checkpoint(staleness: int) -> None:
    config = ahead(staleness, ENDING)
    async with scripted_chat(skilled(soon_perfect)) as model:
        results = await run(model, config)
        usual = await run(model, replace(config, stop_when=None))
    last = results[-1].iteration
    assert 4 <= last < 12
    assert last % 2 == 0
    assert Stopping(config, saved_points(results, config)).reason == "target"
    assert Stopping(config, saved_points(results[:-1], config)).reason is None
    assert list(map(figures, results[:-1])) == list(map(figures, usual[:last]))
    assert {evaluation.split for evaluation in results[-1].evaluations} == {"validation", "test"}
    assert usual[-1].iteration == 12


async def test_a_run_that_dies_after_any_iteration_ends_at_the_same_one() -> None:
    async with scripted_chat(skilled(soon_perfect)) as model:
        undisturbed = await run(model, ENDING)
        for lived in range(1, len(undisturbed) + 1):
            policy, journal, results = Trained(model.url), MemoryJournal(), list[IterationResult]()
            loop = learn_loop(ENDING, SyntheticEmailSearch(), ReferenceJudge(), policy, journal=journal)
            async with aclosing(loop):
                while len(results) < lived:
                    results.append(await anext(loop))
            stopping = Stopping(ENDING, saved_points(results, ENDING))
            resumed = {"policy": policy, "journal": journal, "resume": resume_after(results)}
            results += await run(model, ENDING, **resumed, stopping=stopping)  # type: ignore[arg-type]
            assert list(map(figures, results)) == list(map(figures, undisturbed))


async def test_a_target_that_is_not_reached_ends_nothing() -> None:
    async with scripted_chat(skilled(lambda step, address, luck: luck < 0.4)) as model:
        results = await run(model, replace(ENDING, iterations=4))
    assert results[-1].iteration == 4
