"""A step that breaks a real policy is noticed, and the loop goes back, with the same bits wherever it dies."""

from collections import Counter
from dataclasses import replace

import pytest

from learnloop_service.training.collapse import OUTDATED, RESTORED, pause_reason
from learnloop_service.training.diagnosis.collapses import rolled_out
from learnloop_service.training.diagnosis.collect import facts_of
from learnloop_service.training.diagnosis.diagnose import diagnose
from learnloop_service.training.diagnosis.diagnosis import Cause, DiagnosisSettings
from learnloop_service.training.types import EvaluationConfig, PipelineConfig, RunConfig
from tests.fakes.engine_process import EngineProcess
from tests.fakes.lossy_proxy import LossyProxy
from tests.integration.training.mortal_runs import Stage, figures

BREAKS = RunConfig(
    iterations=6,
    groups_per_iteration=9,
    rollouts_per_group=2,
    max_turns=2,
    max_completion_tokens=60,
    learning_rate=0.05,
    warmup_iterations=1,
    seed=3,
    evaluation=EvaluationConfig(every=99, scenarios=0, test_scenarios=0),
    train_options={"max_kl": 1e9},
    on_collapse="step_back",
)
"""Every step moves the policy so far that it writes no more calls."""
RESTORES = "POST /v1/preview/restore-jobs"


async def test_a_loop_that_goes_back_has_the_same_bits_wherever_it_dies(
    engine: EngineProcess, proxy: LossyProxy
) -> None:
    calm = await Stage(proxy, "email_search", BREAKS).to_the_end()
    iterations = calm.results[1:]
    assert [result.step for result in iterations] == [1, 2, 3, 4, 5, 6]
    assert [result.train_metrics.get(RESTORED) for result in iterations] == [None, 0.0, None, 2.0, None, 4.0]
    rates = [result.train_metrics.get("learning_rate") for result in iterations]
    assert rates == pytest.approx([0.05, None, 0.025, None, 0.0125, None])
    weights = calm.weights(engine)
    assert weights["000000"] == weights["000002"] == weights["000004"] == weights["000006"]
    assert len(set(weights.values())) == 4

    facts = [facts_of(result, BREAKS, {}) for result in calm.results]
    for iteration, why in (
        (2, None),
        (4, None),
        (6, "with step 4 as the last good one: the run has gone back 3 times"),
    ):
        until_now = [fact for fact in facts if fact.iteration <= iteration]
        named = diagnose(until_now, DiagnosisSettings(BREAKS, "learnloop/tiny"))[0]
        assert named.cause == Cause.POLICY_COLLAPSED
        assert named.first_iteration == iteration
        assert named.summary.endswith(f"The run went back to the weights of step {iteration - 2}.")
        reason = pause_reason(rolled_out(until_now), iteration, "step_back")
        assert reason is None if why is None else why in (reason or "")

    stage, seen_events = Stage(proxy, "email_search", BREAKS), Counter[str]()
    deaths = [
        ("after train.intent", 2),  # the first is that of the training
        (f"request {RESTORES}", 2),
        ("before train", 3),
        ("yielded 2", 1),
        ("before train.job", 3),
        ("after train", 5),
        ("yielded 4", 1),
    ]

    def kill(event: str) -> bool:
        seen_events[event] += 1
        if (event, seen_events[event]) not in deaths:
            return False
        deaths.remove((event, seen_events[event]))
        return True

    stage.kill = kill
    await stage.to_the_end()
    assert not deaths, "it never died there"
    assert list(map(figures, stage.results)) == list(map(figures, calm.results))
    assert stage.weights(engine) == weights


async def test_rollouts_that_ran_ahead_of_a_policy_that_was_left_teach_nothing(
    engine: EngineProcess, proxy: LossyProxy
) -> None:
    config = replace(BREAKS, iterations=5, pipeline=PipelineConfig(max_staleness=1))
    stage = await Stage(proxy, "email_search", config).to_the_end()
    summaries = [(result.sampled_step, result.step, dict(result.train_metrics)) for result in stage.results[1:]]
    # The first two have the rollouts of step 0, and break it twice. The third goes back, and the rollouts of the
    # fourth are those of step 2, which it left.
    assert [(sampled, step) for sampled, step, _ in summaries] == [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]
    assert summaries[2][2] == {RESTORED: 0.0}
    assert summaries[3][2] == {OUTDATED: 18.0}
    assert summaries[4][2]["learning_rate"] == pytest.approx(0.025)
    weights = stage.weights(engine)
    assert weights["000000"] == weights["000003"]


@pytest.mark.parametrize("action", ["pause", "continue"])
async def test_a_loop_that_does_not_go_back_trains_as_always(proxy: LossyProxy, action: str) -> None:
    config = replace(BREAKS, iterations=2, on_collapse=action)  # type: ignore[arg-type]
    stage = await Stage(proxy, "email_search", config).to_the_end()
    assert not any(RESTORED in result.train_metrics for result in stage.results)
    facts = [facts_of(result, config, {}) for result in stage.results]
    assert diagnose(facts, DiagnosisSettings(config, "learnloop/tiny"))[0].cause is Cause.POLICY_COLLAPSED
    reason = pause_reason(rolled_out(facts), 2, config.on_collapse)
    assert (reason is None) is (action == "continue")
