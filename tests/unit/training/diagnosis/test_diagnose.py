"""What each cause says, for facts that show it, and that its remedy is a valid fork."""

from dataclasses import replace
from typing import Any

import pytest
from annotated_types import Le
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.schemas.run_request import ForkRequest
from learnloop_service.training.collapse import RESTORED
from learnloop_service.training.diagnosis import request_limits
from learnloop_service.training.diagnosis.diagnose import diagnose, not_examined
from learnloop_service.training.diagnosis.diagnosis import Cause, Diagnosis, DiagnosisSettings, Severity, current_causes
from learnloop_service.training.diagnosis.facts import (
    Facts,
    Form,
    GroupFacts,
    HeldOut,
    Probe,
    Readings,
    Replay,
    RewardFacts,
)
from learnloop_service.training.diagnosis.spans import spans_while
from learnloop_service.training.protocol.model_facts import MeasuredToken
from learnloop_service.training.types import EvaluationConfig, PipelineConfig, RunConfig

TINY = "learnloop/tiny"
SETTINGS = DiagnosisSettings(RunConfig(), TINY)
HEALTHY = GroupFacts(
    8,
    malformed=1,
    tool_calls=20,
    scored=8,
    replies=6,
    scores=2,
    successes=3,
    checked=8,
    true_successes=3,
    pairs=15,
    variance=0.4,
    dominance=0.3,
    weight=500.0,
)
SCENARIOS = [f"validation-{number}" for number in range(64)]


def held_out(success: float) -> HeldOut:
    """An evaluation in which the first scenarios succeed."""
    solved = round(success * len(SCENARIOS))
    rates = {id: float(number < solved) for number, id in enumerate(SCENARIOS)}
    return HeldOut(rates, rates)


def facts(iterations: int, group: GroupFacts = HEALTHY, onset: int = 1, **more: Any) -> list[Facts]:
    """The facts of a run whose groups look like that from `onset` on, and healthy before."""
    baseline = Facts(
        0,
        0,
        weights_sha256="w0",
        base_model=TINY,
        has_oracle=True,
        evaluated=GroupFacts(10, malformed=2, tool_calls=20),
        held_out=held_out(0.2),
        tasks={"validation": {id: f"task of {id}" for id in SCENARIOS}},
    )
    rest = [
        Facts(
            number,
            number,
            sampled_step=number - 1,
            staleness=0,
            kl_div=0.0,
            weights_sha256=f"w{number}",
            base_model=TINY,
            has_oracle=True,
            groups=(group if number >= onset else HEALTHY,) * 8,
            max_turns=10,
            rewards=RewardFacts(0.5, 1.0, {"correct": 0.3, "malformed": 0.2}),
            completion_tokens=70.0,
            metrics={"entropy": 1.0, "step_kl": 1e-3, "step_share": 1.0},
            tasks={"train": {f"train-{number}-{group}": f"task {number}-{group}" for group in range(8)}},
            replay=Replay("t0"),
            readings={"train": Readings(16, 0)},
            probe=Probe(8, moved=0.2, noise=1e-4, sampler_after=1e-4, sampler_before=0.2),
        )
        for number in range(1, iterations + 1)
    ]
    return [baseline, *(replace(healthy, **more) if healthy.iteration >= onset else healthy for healthy in rest)]


def only(diagnoses: list[Diagnosis]) -> Diagnosis:
    [diagnosis] = diagnoses
    if diagnosis.remedy.request is not None:
        ForkRequest.model_validate(diagnosis.remedy.request)
    return diagnosis


def test_a_healthy_run_has_no_diagnosis_and_everything_is_examined() -> None:
    assert diagnose(facts(14), SETTINGS) == []
    assert not_examined(facts(14), SETTINGS) == []
    assert {gap.cause for gap in not_examined(facts(0), SETTINGS)} == set(Cause)
    assert diagnose([], SETTINGS) == []


def test_early_malformed_replies_name_their_forms_and_demonstrations() -> None:
    forms = (Form(5, "<tool_call> oops", "t1"), Form(3, "hello", "t2"))
    diagnosis = only(
        diagnose(facts(3, replace(HEALTHY, malformed=8), forms=forms, examples={"malformed": ("t1",)}), SETTINGS)
    )
    assert diagnosis.cause == Cause.MALFORMED_REPLIES
    assert diagnosis.severity == Severity.WARNING
    assert diagnosis.first_iteration == 1
    assert diagnosis.evidence["forms"][0] == {"count": 15, "text": "<tool_call> oops", "trajectory_id": "t1"}
    assert diagnosis.evidence["share"] == 1.0
    assert diagnosis.evidence["bound"] == 0.4
    assert diagnosis.remedy.request == {"checkpoint": 0, "warm_start": {"demonstrations": {"oracle": 64}}}
    assert diagnosis.remedy.how == "fork"


def test_a_base_that_cannot_call_tools_is_named_within_three_iterations() -> None:
    history = facts(3, replace(HEALTHY, malformed=8), has_oracle=False)
    history[0] = replace(history[0], evaluated=GroupFacts(10, malformed=10))
    diagnosis = only(diagnose(history, SETTINGS))
    assert diagnosis.evidence["bound"] == 0.6
    assert diagnosis.remedy.request is None
    assert diagnosis.remedy.how == "none"


def test_a_base_that_is_malformed_at_first_and_recovers_is_not_named() -> None:
    shares = [5, 5, 4, 3, 2, 1, 1, 1]
    history = facts(8)
    history = [
        history[0],
        *(replace(f, groups=(replace(HEALTHY, malformed=n),) * 8) for f, n in zip(history[1:], shares, strict=True)),
    ]
    history[0] = replace(history[0], evaluated=GroupFacts(10, malformed=6))
    assert diagnose(history, SETTINGS) == []


def test_malformed_replies_later_are_forked_before_their_onset() -> None:
    collapsed, malformed = diagnose(facts(9, replace(HEALTHY, malformed=8), onset=7), SETTINGS)
    assert collapsed.cause == Cause.POLICY_COLLAPSED
    assert malformed.explained_by == Cause.POLICY_COLLAPSED
    assert malformed.first_iteration == 7
    assert malformed.remedy.request == {"checkpoint": 6, "train_options": {"max_kl": 0.005}}


def test_truncated_replies_explain_malformed_ones() -> None:
    diagnoses = diagnose(facts(3, replace(HEALTHY, truncated=8, malformed=8, truncated_malformed=8)), SETTINGS)
    assert [(diagnosis.cause, diagnosis.explained_by) for diagnosis in diagnoses] == [
        (Cause.TRUNCATED_REPLIES, None),
        (Cause.MALFORMED_REPLIES, Cause.TRUNCATED_REPLIES),
    ]
    assert current_causes(diagnoses) == [Cause.TRUNCATED_REPLIES, Cause.MALFORMED_REPLIES]
    assert diagnoses[0].named_at_iteration == 1
    assert diagnoses[0].remedy.request == {"checkpoint": 0, "max_completion_tokens": 512}


@pytest.mark.parametrize(
    ("timeouts", "fork"),
    [(0, {"checkpoint": 4, "concurrency": 32}), (40, {"checkpoint": 4, "rollout_timeout_s": 600.0})],
)
def test_infrastructure_failures_name_the_setting_that_fits(timeouts: int, fork: Any) -> None:
    group = replace(HEALTHY, infrastructure=5)
    diagnosis = only(diagnose(facts(6, group, onset=5, timeouts=timeouts, errors=("refused",)), SETTINGS))
    assert diagnosis.cause == Cause.INFRASTRUCTURE_FAILURES
    assert diagnosis.remedy.request == fork
    assert diagnosis.evidence["errors"] == ["refused"]


def test_unchanged_weights_are_a_fault_until_three_steps_change_them() -> None:
    history = facts(2)
    same = [*history[:2], replace(history[2], weights_sha256="w1")]
    diagnosis = only(diagnose(same, SETTINGS))
    assert diagnosis.cause == Cause.WEIGHTS_UNCHANGED
    assert diagnosis.severity == Severity.FAULT
    assert diagnosis.first_iteration == 2
    assert diagnosis.remedy.request == {"checkpoint": 1, "learning_rate": pytest.approx(7e-3)}
    later = [*same, *facts(5)[3:]]
    cleared = only(diagnose(later, SETTINGS))
    assert cleared.state == "cleared"
    assert current_causes([cleared]) == []


def test_an_iteration_that_trained_nothing_may_keep_its_weights() -> None:
    history = facts(2)
    assert diagnose([*history[:2], replace(history[2], step=1, weights_sha256="w1")], SETTINGS) == []


@pytest.mark.parametrize(
    ("base", "rate", "named"),
    [
        (TINY, 0.1, True),
        (TINY, 0.07, True),
        (TINY, 0.02, False),
        (TINY, 1e-12, True),
        ("qwen", 7e-4, False),
        ("qwen", 1e-2, True),
    ],
)
def test_a_learning_rate_far_from_the_default_of_the_base(base: str, rate: float, named: bool) -> None:
    settings = DiagnosisSettings(RunConfig(learning_rate=rate), "project/model@3")
    history = [replace(iteration, base_model=base) for iteration in facts(1)]
    causes = [diagnosis.cause for diagnosis in diagnose(history, settings)]
    assert causes == [Cause.UNUSUAL_LEARNING_RATE] * named
    if named:
        usual = 7e-4 if base == TINY else 1e-5
        assert only(diagnose(history, settings)).remedy.request == {"checkpoint": 0, "learning_rate": usual}


@pytest.mark.parametrize(("rate", "named"), [(7e-4, True), (5e-4, False), (5e-5, False), (2e-5, True)])
def test_a_learning_rate_far_from_that_of_a_base_of_known_size(rate: float, named: bool) -> None:
    settings = DiagnosisSettings(RunConfig(learning_rate=rate), "qwen", usual_learning_rate=2e-4)
    diagnoses = diagnose([replace(iteration, base_model="qwen") for iteration in facts(1)], settings)
    assert [diagnosis.cause for diagnosis in diagnoses] == [Cause.UNUSUAL_LEARNING_RATE] * named
    assert [diagnosis.remedy.request for diagnosis in diagnoses] == [{"checkpoint": 0, "learning_rate": 2e-4}] * named


def test_rollouts_older_than_allowed_are_a_fault() -> None:
    settings = DiagnosisSettings(RunConfig(pipeline=PipelineConfig(1)), TINY)
    assert diagnose(facts(4, staleness=1), settings) == []
    diagnosis = only(diagnose(facts(4, onset=3, staleness=2), settings))
    assert diagnosis.cause == Cause.STALE_POLICY
    assert diagnosis.first_iteration == 3
    assert diagnosis.evidence["bound"] == 1
    assert diagnosis.remedy.request == {"checkpoint": 2, "pipeline": {"max_staleness": 0}}


def test_replies_that_are_read_differently_are_a_fault() -> None:
    readings = {"train": Readings(16, 0), "evaluation": Readings(16, 2, "<tool_call>", "t9")}
    diagnosis = only(diagnose(facts(4, onset=3, readings=readings), SETTINGS))
    assert diagnosis.cause == Cause.PARSER_DRIFT
    assert diagnosis.severity == Severity.FAULT
    assert diagnosis.first_iteration == 3
    assert "In evaluation rollouts, 2 of 16 recorded replies" in diagnosis.summary
    assert diagnosis.evidence["text"] == "<tool_call>"
    assert diagnosis.remedy.how == "none"


@pytest.mark.parametrize(
    ("after", "before", "says"),
    [(0.2, 1e-4, "still has the weights of the step before"), (0.5, 0.4, "has other weights")],
)
def test_a_sampler_with_other_weights_is_a_fault_that_names_what_it_has(after: float, before: float, says: str) -> None:
    probe = Probe(8, moved=0.2, noise=1e-4, sampler_after=after, sampler_before=before)
    diagnosis = only(diagnose(facts(4, onset=3, probe=probe), SETTINGS))
    assert diagnosis.cause == Cause.SAMPLER_IS_NOT_TRAINER
    assert diagnosis.severity == Severity.FAULT
    assert diagnosis.first_iteration == 3
    assert says in diagnosis.summary
    assert diagnosis.remedy.how == "none"


def test_a_sampler_is_not_blamed_for_steps_smaller_than_its_noise() -> None:
    """With a sampler in 8 bits and small steps nothing can be measured, so nothing is named."""
    probe = Probe(8, moved=0.05, noise=0.03, sampler_after=0.04, sampler_before=0.04)
    assert diagnose(facts(4, probe=probe), SETTINGS) == []


def test_a_token_that_rounding_moved_far_is_not_taken_for_other_weights() -> None:
    """The log-probability of a sampler in bfloat16 is far off where two tokens are nearly as likely."""
    measured = [MeasuredToken((1,), before, before, before + 0.4) for before in (-1.0, -1.5, -2.0, -2.5, -3.0)]
    errors = (1.2, 0.01, -0.02, 0.01, 0.0)
    right = Probe.of([(token, token.after + error) for token, error in zip(measured, errors, strict=True)])
    stale = Probe.of([(token, token.before + error) for token, error in zip(measured, errors, strict=True)])
    assert diagnose(facts(4, probe=right), SETTINGS) == []
    assert only(diagnose(facts(4, onset=3, probe=stale), SETTINGS)).cause == Cause.SAMPLER_IS_NOT_TRAINER


def test_noise_that_later_steps_show_is_not_taken_for_other_weights() -> None:
    """A sampler in bfloat16 happens to be exact for the few tokens of the first step."""
    noisy = Probe(2, moved=0.02, noise=0.008, sampler_after=0.006, sampler_before=0.02)
    odd = Probe(2, moved=0.03, noise=0.004, sampler_after=0.016, sampler_before=0.03)
    first, second, *others = facts(4)[1:]
    history = [
        facts(0)[0],
        first,
        replace(second, probe=noisy),
        *(replace(iteration, probe=odd) for iteration in others),
    ]
    assert diagnose(history, SETTINGS) == []


def test_a_sampler_without_new_weights_is_not_hidden_by_its_distance() -> None:
    steps = facts(6)
    stale = [
        replace(
            step,
            probe=Probe(
                2, moved=0.2, noise=max(1e-4, 0.2 * (step.iteration - 1)), sampler_after=0.2, sampler_before=0.0
            ),
        )
        for step in steps[1:]
    ]
    diagnosis = only(diagnose([steps[0], *stale], SETTINGS))
    assert diagnosis.cause == Cause.SAMPLER_IS_NOT_TRAINER
    assert diagnosis.first_iteration == 1
    assert diagnosis.state == "active"


def test_the_distance_of_a_stale_sampler_is_no_noise_while_steps_are_small() -> None:
    steps = facts(3)
    moves = ((0.001, 0.001), (0.004, 0.003), (0.01, 0.005))
    stale = [
        replace(step, probe=Probe(2, moved=moved, noise=noise, sampler_after=moved, sampler_before=0.0))
        for step, (moved, noise) in zip(steps[1:], moves, strict=True)
    ]
    diagnosis = only(diagnose([steps[0], *stale], SETTINGS))
    assert diagnosis.cause == Cause.SAMPLER_IS_NOT_TRAINER
    assert diagnosis.first_iteration == 3


def test_what_a_backend_does_not_report_is_not_examined() -> None:
    history = facts(2, weights_sha256=None)
    history[0] = replace(history[0], weights_sha256=None)
    assert [gap.cause for gap in not_examined(history, SETTINGS)] == [Cause.WEIGHTS_UNCHANGED]


def test_facts_survive_json() -> None:
    [_, one] = facts(1, GroupFacts(8, 1, 2, 3, 1), forms=(Form(1, "x", "t"),), examples={"malformed": ("t",)})
    assert Facts.parse(one.dump()) == one
    replaced = replace(one, replacements=(replace(HEALTHY, scenario="another"),))
    assert Facts.parse(replaced.dump()) == replaced
    assert one.dump()["groups"]["malformed"] == [3] * 8
    earlier = one.dump() | {"groups": [{"rollouts": 8, "infrastructure": 1, "truncated": 2, "malformed": 3}] * 8}
    assert Facts.parse(earlier).groups == (GroupFacts(8, 1, 2, 3),) * 8


def late(iterations: int, onset: int, group: GroupFacts, **more: Any) -> Diagnosis:
    """The only diagnosis of a run whose groups look like that from `onset` on, besides the sudden onset itself."""
    return only(without_collapse(diagnose(facts(iterations, group, onset, **more), SETTINGS)))


def without_collapse(diagnoses: list[Diagnosis]) -> list[Diagnosis]:
    return [diagnosis for diagnosis in diagnoses if diagnosis.cause is not Cause.POLICY_COLLAPSED]


@pytest.mark.parametrize(
    ("group", "cause", "words", "fork"),
    [
        (replace(HEALTHY, agent_errors=4), Cause.AGENT_ERRORS, "50% of the rollouts failed because the agent", None),
        (
            replace(HEALTHY, out_of_turns=8),
            Cause.OUT_OF_TURNS,
            "100% of the rollouts ended because they had used up their 10 turns",
            {"checkpoint": 4, "max_turns": 20},
        ),
        (replace(HEALTHY, tool_errors=20), Cause.TOOL_ERRORS, "100% of the tool calls were answered by an error", None),
        (replace(HEALTHY, unscored=4, scored=4), Cause.JUDGE_SILENT, "no score to 50% of the finished rollouts", None),
        (replace(HEALTHY, scores=1), Cause.JUDGE_CONSTANT, "In 100% of the groups the judge gave different", None),
        (replace(HEALTHY, misordered=15.0), Cause.JUDGE_DISAGREES, "the judge did not prefer the right one", None),
        (
            replace(HEALTHY, successes=0),
            Cause.TOO_HARD,
            "In 100% of the groups no rollout succeeded",
            {"checkpoint": 4, "warm_start": {"demonstrations": {"oracle": 64}}},
        ),
        (replace(HEALTHY, successes=8), Cause.TOO_EASY, "In 100% of the groups every rollout succeeded", None),
        (replace(HEALTHY, dominance=0.4), Cause.PART_DOMINATES, "One part of the reward explains", None),
    ],
)
def test_shares_above_their_bound_are_named_with_what_to_change(
    group: GroupFacts, cause: Cause, words: str, fork: Any
) -> None:
    diagnosis = late(12, 5, group, examples={str(cause): ("t1",)})
    assert diagnosis.cause == cause
    assert 5 <= diagnosis.first_iteration <= diagnosis.named_at_iteration
    assert words in diagnosis.summary
    assert diagnosis.evidence["share"] > diagnosis.evidence["bound"]
    assert diagnosis.remedy.request == fork


def test_a_judge_without_a_check_is_constant_if_the_replies_differ() -> None:
    unchecked = replace(HEALTHY, checked=0, true_successes=0, pairs=0, scores=1)
    assert late(6, 1, unchecked).cause == Cause.JUDGE_CONSTANT
    alike = replace(unchecked, replies=1)
    assert diagnose(facts(6, alike), SETTINGS) == []


def test_a_judge_may_score_rollouts_alike_that_the_environment_finds_alike() -> None:
    """Wrong answers differ, and are equally wrong to the default judge and to the run's own."""
    group = replace(HEALTHY, scores=1, successes=1, true_successes=0, pairs=0)
    assert diagnose(facts(8, group), SETTINGS) == []


def test_a_constant_judge_explains_groups_without_success() -> None:
    diagnoses = diagnose(facts(8, replace(HEALTHY, scores=1, successes=0)), SETTINGS)
    assert [(diagnosis.cause, diagnosis.explained_by) for diagnosis in diagnoses] == [
        (Cause.JUDGE_CONSTANT, None),
        (Cause.TOO_HARD, Cause.JUDGE_CONSTANT),
    ]


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ({"train": {"a": "one", "b": "one", "c": "two"}}, "share a task with another one"),
        ({"train": {"a": "task of validation-3"}}, "1 held-out scenario has the same task"),
    ],
)
def test_scenarios_that_repeat_are_named_with_their_ids(tasks: Any, words: str) -> None:
    diagnosis = late(4, 1, HEALTHY, tasks=tasks)
    assert diagnosis.cause == Cause.DUPLICATE_SCENARIOS
    assert diagnosis.severity == Severity.WARNING
    assert diagnosis.named_at_iteration == 1
    assert words in diagnosis.summary
    assert diagnosis.evidence["repeated_in_training"] + diagnosis.evidence["held_out_and_trained"] in (
        ["b"],
        ["validation-3"],
    )


def test_a_few_repeated_scenarios_are_no_fault() -> None:
    history = facts(4)
    once = replace(history[1], tasks={"train": {**history[1].tasks["train"], "again": "task 1-0"}})
    assert diagnose([history[0], once, *history[2:]], SETTINGS) == []


def test_a_flaky_environment_is_named_with_both_of_its_answers() -> None:
    replay = Replay("t7", True, 2, "search", "12 mails", "13 mails")
    diagnosis = late(6, 4, HEALTHY, replay=replay)
    assert diagnosis.cause == Cause.ENVIRONMENT_FLAKY
    assert diagnosis.severity == Severity.WARNING
    assert diagnosis.first_iteration == 4
    assert "the result of search in turn 2" in diagnosis.summary
    assert diagnosis.evidence["recorded"] == "12 mails"
    assert diagnosis.evidence["found"] == "13 mails"


def test_a_reward_that_rises_without_success_names_the_part_that_rose() -> None:
    hacked = replace(HEALTHY, true_successes=0, pairs=0)
    diagnosis = late(12, 6, hacked, rewards=RewardFacts(1.5, 1.0, {"correct": 0.1, "malformed": 1.4}))
    assert diagnosis.cause == Cause.REWARD_HACKED
    assert diagnosis.evidence["part"] == "malformed"
    assert "mean reward rose by 1.00" in diagnosis.summary


def test_a_reward_that_rises_with_success_is_no_fault() -> None:
    better = replace(HEALTHY, successes=5, true_successes=5)
    assert diagnose(facts(12, better, 6, rewards=RewardFacts(1.5, 1.0, {"correct": 1.3})), SETTINGS) == []


@pytest.mark.parametrize(
    ("more", "cause", "words", "fork"),
    [
        (
            {"metrics": {"entropy": 0.1}, "groups": (replace(HEALTHY, weight=0.0),) * 5 + (HEALTHY,) * 3},
            Cause.ENTROPY_COLLAPSE,
            "entropy is 10% of that at the beginning",
            {"learning_rate": pytest.approx(3.5e-4)},
        ),
        (
            {"metrics": {"step_share": 0.25, "step_kl": 1e-3}},
            Cause.STEPS_SHORTENED,
            "Of a step, 25% remain",
            {"learning_rate": pytest.approx(1.7e-4)},
        ),
        (
            {"metrics": {"step_share": 1.0, "step_kl": 1e-10}},
            Cause.STEPS_TOO_SMALL,
            "moves the policy by 1e-10 nats a token",
            {"learning_rate": pytest.approx(7e-3)},
        ),
        (
            {"groups": (HEALTHY,) + (replace(HEALTHY, weight=1.0),) * 7},
            Cause.FEW_GROUPS_DECIDE,
            "that of 1.0 groups",
            {"groups_per_iteration": 16},
        ),
        (
            {"completion_tokens": 140.0},
            Cause.LENGTH_GROWTH,
            "2.0 times as long",
            {"max_completion_tokens": 128},
        ),
    ],
)
def test_trends_are_notes_once_they_have_lasted(more: Any, cause: Cause, words: str, fork: Any) -> None:
    diagnosis = late(12, 6, HEALTHY, **more)
    assert diagnosis.cause == cause
    assert diagnosis.severity == Severity.NOTE
    assert diagnosis.first_iteration == 6
    assert diagnosis.named_at_iteration in (8, 10)
    assert words in diagnosis.summary
    assert diagnosis.remedy.request == {"checkpoint": 5} | fork
    assert current_causes([diagnosis]) == []


def test_a_step_that_breaks_the_policy_explains_malformed_replies() -> None:
    good = facts(3, replace(HEALTHY, successes=7))
    broken = facts(6, replace(HEALTHY, successes=1, malformed=6, true_successes=1), onset=4)[4:]
    diagnosis = diagnose([*good, *broken], SETTINGS)[0]
    assert diagnosis.cause == Cause.POLICY_COLLAPSED
    assert diagnosis.severity == Severity.WARNING
    assert diagnosis.first_iteration == 4
    assert diagnosis.summary == "Since step 3, success fell from 88% to 12%."
    assert diagnosis.remedy.request == {"checkpoint": 2, "learning_rate": 3.5e-4}
    assert ForkRequest.model_validate(diagnosis.remedy.request)
    others = {other.cause: other.explained_by for other in diagnose([*good, *broken], SETTINGS)}
    assert others[Cause.MALFORMED_REPLIES] == Cause.POLICY_COLLAPSED


def test_the_cause_of_a_run_that_went_back_ends_with_good_rollouts() -> None:
    good = facts(3, replace(HEALTHY, successes=7))
    broken = facts(4, replace(HEALTHY, successes=1, true_successes=1), onset=4)[4]
    broken = replace(broken, metrics={**broken.metrics, RESTORED: 2.0})
    diagnosis = only(diagnose([*good, broken], SETTINGS))
    assert (
        diagnosis.summary == "Since step 3, success fell from 88% to 12%. The run went back to the weights of step 2."
    )
    assert diagnosis.state == "active"
    assert diagnosis.remedy.request is None
    again = facts(5, replace(HEALTHY, successes=7))[5]
    assert only(diagnose([*good, broken, again], SETTINGS)).state == "cleared"


def test_small_iterations_cannot_show_a_collapse() -> None:
    settings = DiagnosisSettings(RunConfig(groups_per_iteration=4), TINY)
    reasons = {gap.cause: gap.reason for gap in not_examined(facts(2), settings)}
    assert "4 groups" in reasons[Cause.POLICY_COLLAPSED]
    assert Cause.POLICY_COLLAPSED not in {gap.cause for gap in not_examined(facts(2), SETTINGS)}


def test_old_rollouts_of_large_steps_are_a_note() -> None:
    settings = DiagnosisSettings(RunConfig(pipeline=PipelineConfig(2)), TINY)
    diagnosis = only(diagnose(facts(8, onset=4, staleness=2, kl_div=0.04), settings))
    assert diagnosis.cause == Cause.STALE_ROLLOUTS
    assert diagnosis.first_iteration == 4
    assert diagnosis.remedy.request == {"checkpoint": 3, "pipeline": {"max_staleness": 1}}


def test_a_run_that_rises_has_no_trends() -> None:
    history = facts(12, onset=6, completion_tokens=140.0)
    better = [
        replace(iteration, held_out=held_out(0.9)) if iteration.iteration == 4 else iteration for iteration in history
    ]
    assert diagnose(better, SETTINGS) == []
    assert [diagnosis.cause for diagnosis in diagnose(history, SETTINGS)] == [Cause.LENGTH_GROWTH]


def test_held_out_success_that_falls_while_training_rises_is_overfitting() -> None:
    history = facts(12, replace(HEALTHY, successes=7, true_successes=7), onset=5)
    curve = {4: 0.8, 8: 0.8, 12: 0.1}
    history = [
        replace(iteration, held_out=held_out(curve[iteration.iteration])) if iteration.iteration in curve else iteration
        for iteration in history
    ]
    overfitting = [diagnosis for diagnosis in diagnose(history, SETTINGS) if diagnosis.cause == Cause.OVERFITS]
    assert only(overfitting).first_iteration == 12
    assert only(overfitting).evidence["held_out_success"] == {"0": 0.2031, "4": 0.7969, "8": 0.7969, "12": 0.0938}


def shared(training_success: float, held_out_success: float, scenarios: int = 128, groups: int = 16) -> list[Facts]:
    """The first iteration after demonstrations, which rolls out demonstrated scenarios again."""
    right = round(training_success * groups * 8)
    counts = [right // groups + (number < right % groups) for number in range(groups)]
    rates = {f"v{number}": float(number < round(held_out_success * scenarios)) for number in range(scenarios)}
    [before, warm, first] = facts(2)
    rolled_out = [
        replace(HEALTHY, scenario=f"s{n}", successes=count, true_successes=count) for n, count in enumerate(counts)
    ]
    return [
        replace(before, demonstrated=tuple(f"s{n}" for n in range(40)), held_out=None),
        replace(warm, groups=(), sampled_step=None, held_out=HeldOut(rates, {}), rewards=None, probe=None),
        replace(first, groups=tuple(rolled_out)),
    ]


GAP_SETTINGS = DiagnosisSettings(RunConfig(iterations=30, evaluation=EvaluationConfig(every=10)), "qwen")


def test_a_gap_to_held_out_success_is_overfitting_after_one_iteration() -> None:
    diagnosis = only([named for named in diagnose(shared(0.86, 0.42), GAP_SETTINGS) if named.cause == Cause.OVERFITS])
    assert diagnosis.first_iteration == 2
    assert diagnosis.named_at_iteration == 2
    assert diagnosis.severity == Severity.NOTE
    assert "86% on training scenarios that were demonstrated" in diagnosis.summary
    assert "42% on held-out ones" in diagnosis.summary
    assert diagnosis.evidence["groups"] == 16
    assert diagnosis.evidence["scenarios"] == 128
    assert 0 < diagnosis.evidence["low"] < 0.44
    assert "More training scenarios" in diagnosis.remedy.text


@pytest.mark.parametrize(
    "history",
    [
        shared(0.83, 0.79),
        shared(0.86, 0.42, scenarios=6),
        shared(0.86, 0.42, groups=3),
        [replace(shared(0.86, 0.42)[0], demonstrated=()), *shared(0.86, 0.42)[1:]],
        [*shared(0.86, 0.42)[:2], replace(shared(0.86, 0.42)[2], sampled_step=0)],
    ],
    ids=["small gap", "few scenarios", "few groups", "other scenarios", "another policy"],
)
def test_a_gap_by_chance_or_of_other_scenarios_is_not_overfitting(history: list[Facts]) -> None:
    assert Cause.OVERFITS not in [diagnosis.cause for diagnosis in diagnose(history, GAP_SETTINGS)]


def test_a_gap_of_scenarios_rolled_out_before_is_named_until_it_closes() -> None:
    first = shared(0.86, 0.42)
    again = replace(first[2], iteration=3, step=3, sampled_step=2)
    later = [replace(first[0], demonstrated=()), first[1], replace(first[2], held_out=first[1].held_out), again]
    diagnosis = only([named for named in diagnose(later, GAP_SETTINGS) if named.cause == Cause.OVERFITS])
    assert diagnosis.first_iteration == 3
    assert diagnosis.state == "active"
    closed = [*later[:3], replace(again, held_out=shared(0.86, 0.84)[1].held_out)]
    closed.append(replace(again, iteration=4, step=4, sampled_step=3))
    assert [named.state for named in diagnose(closed, GAP_SETTINGS) if named.cause == Cause.OVERFITS] == ["cleared"]


def test_scenarios_that_the_base_solved_and_that_fail_now_are_listed() -> None:
    lost = HeldOut(held_out(0.9).sampled, {id: float(number > 5) for number, id in enumerate(SCENARIOS)})
    history = facts(4)
    diagnosis = only(diagnose([*history[:4], replace(history[4], held_out=lost)], SETTINGS))
    assert diagnosis.cause == Cause.FORGETS
    assert diagnosis.severity == Severity.NOTE
    assert diagnosis.first_iteration == 4
    assert diagnosis.evidence["scenarios"] == SCENARIOS[:6]


def test_iterations_without_a_signal_are_unexplained_without_a_cause() -> None:
    diagnosis = late(4, 2, HEALTHY, no_signal="equal_rewards")
    assert diagnosis.cause == Cause.UNEXPLAINED
    assert diagnosis.severity == Severity.WARNING
    assert diagnosis.first_iteration == 2
    assert diagnosis.named_at_iteration == 4
    [named, cleared] = diagnose(facts(7, replace(HEALTHY, successes=0), 1, no_signal="equal_rewards"), SETTINGS)
    assert named.cause == Cause.TOO_HARD
    assert named.state == "active"
    assert cleared.cause == Cause.UNEXPLAINED
    assert cleared.state == "cleared"


def test_a_solved_task_has_no_signal_and_no_diagnosis_but_that_it_is_easy() -> None:
    solved = replace(HEALTHY, successes=8, true_successes=8, pairs=0, weight=0.0, variance=0.0, scores=1)
    assert late(9, 2, solved, no_signal="equal_rewards").cause == Cause.TOO_EASY


@pytest.mark.parametrize("successes", [0, 8])
@pytest.mark.parametrize(("temperature", "named"), [(0.01, True), (0.29, True), (0.3, False), (1.0, False)])
def test_groups_that_are_alike_are_blamed_on_a_low_temperature_only(
    temperature: float, named: bool, successes: int
) -> None:
    alike = replace(HEALTHY, scores=1, variance=0.0, successes=successes, weight=0.0, replies=1, checked=0, pairs=0)
    settings = DiagnosisSettings(RunConfig(temperature=temperature), TINY)
    diagnoses = diagnose(facts(6, alike, no_signal="equal_rewards"), settings)
    assert (diagnoses[0].cause == Cause.NOTHING_VARIES) == named
    if named:
        assert "in 48 of 48 groups the rollouts got the same reward" in diagnoses[0].summary
        assert diagnoses[0].remedy.request == {"checkpoint": 0, "temperature": 1.0}
        assert {diagnosis.explained_by for diagnosis in diagnoses[1:]} == {Cause.NOTHING_VARIES}
        ForkRequest.model_validate(diagnoses[0].remedy.request)


def test_a_low_temperature_is_no_cause_where_groups_differ() -> None:
    assert diagnose(facts(6), DiagnosisSettings(RunConfig(temperature=0.1), TINY)) == []


def test_limits_of_remedies_are_those_of_a_request() -> None:
    fields = ForkRequest.model_fields
    names = {
        "learning_rate": request_limits.LEARNING_RATE,
        "max_completion_tokens": request_limits.COMPLETION_TOKENS,
        "rollout_timeout_s": request_limits.TIMEOUT_S,
        "max_turns": request_limits.TURNS,
        "groups_per_iteration": request_limits.GROUPS,
        "rollouts_per_group": request_limits.ROLLOUTS,
    }
    assert names == {name: next(bound.le for bound in fields[name].metadata if isinstance(bound, Le)) for name in names}


@pytest.mark.parametrize(
    ("config", "more", "fork"),
    [
        (
            RunConfig(pipeline=PipelineConfig(4)),
            {"staleness": 4, "kl_div": 0.1},
            {"train_options": {"importance_sampling_level": "sequence", "epsilon_high": 1.0}},
        ),
        (
            RunConfig(train_options={"token_weighting": "token"}),
            {"completion_tokens": 140.0},
            {"train_options": {"token_weighting": "trajectory"}},
        ),
        (
            RunConfig(),
            {"has_oracle": False, "groups": (replace(HEALTHY, successes=0),) * 8},
            {"rollouts_per_group": 16},
        ),
    ],
)
def test_remedies_that_depend_on_the_settings_are_valid_forks(config: RunConfig, more: Any, fork: Any) -> None:
    diagnosis = only(without_collapse(diagnose(facts(12, onset=6, **more), DiagnosisSettings(config, TINY))))
    assert diagnosis.remedy.request == {"checkpoint": 5} | fork


@given(st.lists(st.sampled_from([True, False, None])), st.integers(1, 4), st.integers(1, 4))
def test_spans_follow_their_rule(holds: list[bool | None], lasts: int, clear_after: int) -> None:
    spans = spans_while(enumerate(holds), lasts=lasts, clear_after=clear_after)
    for span in spans:
        assert [holds[position] for position in range(span.first, span.named + 1) if holds[position] is not None] == [
            True
        ] * lasts
        if span.cleared is not None:
            examined = [state for state in holds[: span.cleared + 1] if state is not None]
            assert examined[-clear_after:] == [False] * clear_after
    assert all(span.cleared is not None for span in spans[:-1])
    assert bool(spans) == ("T" * lasts in "".join("T" if state else "F" for state in holds if state is not None))
