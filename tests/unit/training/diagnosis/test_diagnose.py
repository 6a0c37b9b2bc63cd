"""What each cause says, for facts that show it, and that its remedy is a valid fork."""

from dataclasses import replace
from typing import Any

import pytest

from app.schemas.run_request import ForkRequest
from training.diagnosis.diagnose import diagnose, not_examined
from training.diagnosis.diagnosis import Cause, Diagnosis, DiagnosisSettings, Severity, current_causes
from training.diagnosis.facts import Facts, Form, GroupFacts, Probe, Readings
from training.types import PipelineConfig, RunConfig

TINY = "learnloop/tiny"
SETTINGS = DiagnosisSettings(RunConfig(), TINY)
HEALTHY = GroupFacts(8, malformed=1)


def facts(iterations: int, group: GroupFacts = HEALTHY, onset: int = 1, **more: Any) -> list[Facts]:
    """The facts of a run whose groups look like that from `onset` on, and healthy before."""
    baseline = Facts(0, 0, weights_sha256="w0", base_model=TINY, has_oracle=True, evaluated_malformed=0.2)
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
            readings={"train": Readings(16, 0)},
            probe=Probe(8, moved=0.2, noise=1e-4, sampler_after=1e-4, sampler_before=0.2),
        )
        for number in range(1, iterations + 1)
    ]
    return [baseline, *(replace(each, **more) if each.iteration >= onset else each for each in rest)]


def only(found: list[Diagnosis]) -> Diagnosis:
    [diagnosis] = found
    if diagnosis.remedy.request is not None:
        ForkRequest.model_validate(diagnosis.remedy.request)
    return diagnosis


def test_a_healthy_run_has_no_diagnosis_and_everything_is_examined() -> None:
    assert diagnose(facts(14), SETTINGS) == []
    assert not_examined(facts(14), SETTINGS) == []
    assert {each.cause for each in not_examined(facts(0), SETTINGS)} == set(Cause)
    assert diagnose([], SETTINGS) == []


def test_malformed_replies_from_the_start_name_their_forms_and_demonstrations() -> None:
    forms = (Form(5, "<tool_call> oops", "t1"), Form(3, "hello", "t2"))
    found = only(diagnose(facts(3, GroupFacts(8, malformed=8), forms=forms, examples={"malformed": ("t1",)}), SETTINGS))
    assert (found.cause, found.severity, found.first_iteration) == (Cause.MALFORMED_REPLIES, Severity.WARNING, 1)
    assert found.evidence["forms"][0] == {"count": 15, "text": "<tool_call> oops", "trajectory_id": "t1"}
    assert (found.evidence["share"], found.evidence["bound"]) == (1.0, 0.4)
    assert found.remedy.request == {"checkpoint": 0, "warm_start": {"demonstrations": {"oracle": 64}}}
    assert found.remedy.how == "fork"


def test_malformed_replies_of_a_base_that_cannot_call_tools_are_named_within_three_iterations() -> None:
    seen = facts(3, GroupFacts(8, malformed=8), has_oracle=False)
    seen[0] = replace(seen[0], evaluated_malformed=1.0)
    found = only(diagnose(seen, SETTINGS))
    assert (found.evidence["bound"], found.remedy.request, found.remedy.how) == (0.6, None, "none")


def test_a_base_that_is_malformed_at_first_and_recovers_is_not_named() -> None:
    shares = [5, 5, 4, 3, 2, 1, 1, 1]
    seen = facts(8)
    seen = [
        seen[0],
        *(replace(f, groups=(GroupFacts(8, malformed=n),) * 8) for f, n in zip(seen[1:], shares, strict=True)),
    ]
    seen[0] = replace(seen[0], evaluated_malformed=0.6)
    assert diagnose(seen, SETTINGS) == []


def test_malformed_replies_later_are_forked_before_their_onset() -> None:
    found = only(diagnose(facts(9, GroupFacts(8, malformed=8), onset=7), SETTINGS))
    assert found.first_iteration == 7
    assert found.remedy.request == {"checkpoint": 6, "train_options": {"max_kl": 0.005}}


def test_truncated_replies_explain_malformed_ones() -> None:
    found = diagnose(facts(3, GroupFacts(8, truncated=8, malformed=8, truncated_malformed=8)), SETTINGS)
    assert [(each.cause, each.explained_by) for each in found] == [
        (Cause.TRUNCATED_REPLIES, None),
        (Cause.MALFORMED_REPLIES, Cause.TRUNCATED_REPLIES),
    ]
    assert current_causes(found) == [Cause.TRUNCATED_REPLIES, Cause.MALFORMED_REPLIES]
    assert found[0].named_at_iteration == 1
    assert found[0].remedy.request == {"checkpoint": 0, "max_completion_tokens": 512}


@pytest.mark.parametrize(
    ("timeouts", "fork"),
    [(0, {"checkpoint": 4, "concurrency": 32}), (40, {"checkpoint": 4, "rollout_timeout_s": 600.0})],
)
def test_infrastructure_failures_name_the_setting_that_fits(timeouts: int, fork: Any) -> None:
    group = GroupFacts(8, infrastructure=5)
    found = only(diagnose(facts(6, group, onset=5, timeouts=timeouts, errors=("refused",)), SETTINGS))
    assert (found.cause, found.remedy.request) == (Cause.INFRASTRUCTURE_FAILURES, fork)
    assert found.evidence["errors"] == ["refused"]


def test_unchanged_weights_are_a_fault_at_the_first_step_and_clear_after_three_that_change() -> None:
    seen = facts(2)
    same = [*seen[:2], replace(seen[2], weights_sha256="w1")]
    found = only(diagnose(same, SETTINGS))
    assert (found.cause, found.severity, found.first_iteration) == (Cause.WEIGHTS_UNCHANGED, Severity.FAULT, 2)
    assert found.remedy.request == {"checkpoint": 1, "learning_rate": pytest.approx(7e-3)}
    later = [*same, *facts(5)[3:]]
    cleared = only(diagnose(later, SETTINGS))
    assert (cleared.state, current_causes([cleared])) == ("cleared", [])


def test_an_iteration_that_trained_nothing_may_keep_its_weights() -> None:
    seen = facts(2)
    assert diagnose([*seen[:2], replace(seen[2], step=1, weights_sha256="w1")], SETTINGS) == []


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
    seen = [replace(each, base_model=base) for each in facts(1)]
    causes = [each.cause for each in diagnose(seen, settings)]
    assert causes == [Cause.UNUSUAL_LEARNING_RATE] * named
    if named:
        usual = 7e-4 if base == TINY else 1e-5
        assert only(diagnose(seen, settings)).remedy.request == {"checkpoint": 0, "learning_rate": usual}


@pytest.mark.parametrize(("rate", "named"), [(7e-4, True), (5e-4, False), (5e-5, False), (2e-5, True)])
def test_a_learning_rate_far_from_that_of_a_base_of_known_size(rate: float, named: bool) -> None:
    settings = DiagnosisSettings(RunConfig(learning_rate=rate), "qwen", usual_learning_rate=2e-4)
    found = diagnose([replace(each, base_model="qwen") for each in facts(1)], settings)
    assert [each.cause for each in found] == [Cause.UNUSUAL_LEARNING_RATE] * named
    assert [each.remedy.request for each in found] == [{"checkpoint": 0, "learning_rate": 2e-4}] * named


def test_rollouts_older_than_allowed_are_a_fault() -> None:
    settings = DiagnosisSettings(RunConfig(pipeline=PipelineConfig(1)), TINY)
    assert diagnose(facts(4, staleness=1), settings) == []
    found = only(diagnose(facts(4, onset=3, staleness=2), settings))
    assert (found.cause, found.first_iteration, found.evidence["bound"]) == (Cause.STALE_POLICY, 3, 1)
    assert found.remedy.request == {"checkpoint": 2, "pipeline": {"max_staleness": 0}}


def test_replies_that_are_read_differently_are_a_fault() -> None:
    readings = {"train": Readings(16, 0), "evaluation": Readings(16, 2, "<tool_call>", "t9")}
    found = only(diagnose(facts(4, onset=3, readings=readings), SETTINGS))
    assert (found.cause, found.severity, found.first_iteration) == (Cause.PARSER_DRIFT, Severity.FAULT, 3)
    assert "2 of 16 replies of evaluation rollouts" in found.summary
    assert found.evidence["text"] == "<tool_call>"
    assert found.remedy.how == "none"


@pytest.mark.parametrize(
    ("after", "before", "says"),
    [(0.2, 1e-4, "still has the weights of the step before"), (0.5, 0.4, "has other weights")],
)
def test_a_sampler_with_other_weights_is_a_fault_that_names_what_it_has(after: float, before: float, says: str) -> None:
    probe = Probe(8, moved=0.2, noise=1e-4, sampler_after=after, sampler_before=before)
    found = only(diagnose(facts(4, onset=3, probe=probe), SETTINGS))
    assert (found.cause, found.severity, found.first_iteration) == (Cause.SAMPLER_IS_NOT_TRAINER, Severity.FAULT, 3)
    assert says in found.summary
    assert found.remedy.how == "none"


def test_an_imprecise_sampler_is_not_blamed_for_steps_that_move_less_than_its_noise() -> None:
    """As with a sampler in 8 bits and small steps: nothing can be told, so nothing is named."""
    probe = Probe(8, moved=0.05, noise=0.03, sampler_after=0.04, sampler_before=0.04)
    assert diagnose(facts(4, probe=probe), SETTINGS) == []


def test_noise_that_later_steps_show_is_not_taken_for_other_weights() -> None:
    """As with a sampler in bfloat16: the few tokens of the first step happen to be exact."""
    noisy = Probe(2, moved=0.02, noise=0.008, sampler_after=0.006, sampler_before=0.02)
    odd = Probe(2, moved=0.03, noise=0.004, sampler_after=0.016, sampler_before=0.03)
    first, second, *others = facts(4)[1:]
    seen = [facts(0)[0], first, replace(second, probe=noisy), *(replace(each, probe=odd) for each in others)]
    assert diagnose(seen, SETTINGS) == []


def test_a_sampler_that_never_gets_new_weights_is_not_hidden_by_its_growing_distance() -> None:
    steps = facts(6)
    stale = [
        replace(
            each,
            probe=Probe(
                2, moved=0.2, noise=max(1e-4, 0.2 * (each.iteration - 1)), sampler_after=0.2, sampler_before=0.0
            ),
        )
        for each in steps[1:]
    ]
    found = only(diagnose([steps[0], *stale], SETTINGS))
    assert (found.cause, found.first_iteration, found.state) == (Cause.SAMPLER_IS_NOT_TRAINER, 1, "active")


def test_the_distance_of_a_stale_sampler_is_no_noise_while_steps_are_small() -> None:
    steps = facts(3)
    moves = ((0.001, 0.001), (0.004, 0.003), (0.01, 0.005))
    stale = [
        replace(each, probe=Probe(2, moved=moved, noise=noise, sampler_after=moved, sampler_before=0.0))
        for each, (moved, noise) in zip(steps[1:], moves, strict=True)
    ]
    found = only(diagnose([steps[0], *stale], SETTINGS))
    assert (found.cause, found.first_iteration) == (Cause.SAMPLER_IS_NOT_TRAINER, 3)


def test_what_a_backend_does_not_report_is_not_examined() -> None:
    seen = facts(2, weights_sha256=None)
    seen[0] = replace(seen[0], weights_sha256=None)
    assert [each.cause for each in not_examined(seen, SETTINGS)] == [Cause.WEIGHTS_UNCHANGED]


def test_facts_survive_json() -> None:
    [_, one] = facts(1, GroupFacts(8, 1, 2, 3, 1), forms=(Form(1, "x", "t"),), examples={"malformed": ("t",)})
    assert Facts.parse(one.dump()) == one
