"""The sentence of an improvement."""

from typing import Any

import pytest

from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.improvements.summary import nothing_helps, sentence
from learnloop_service.app.schemas.improvements import ImprovementOut
from tests.unit.app.improvements.figures import PILOT, accepted, as_it_is, improvement, pattern, refused, success

REACHED, BEST, NOTHING = ImprovementStatus.REACHED, ImprovementStatus.BEST_SO_FAR, ImprovementStatus.NOTHING_HELPS
LOW, MIDDLE, HIGH = success(20, 64), success(45, 64), success(60, 64)
LOW_TEST, MIDDLE_TEST, HIGH_TEST = success(46, 152), success(108, 152), success(141, 152)
START = as_it_is(LOW, LOW_TEST)
PROMPT = accepted(Rung.PROMPT, MIDDLE, MIDDLE_TEST, 1.0, usd=0.4)
IMITATION = accepted(Rung.IMITATION, HIGH, success(128, 152), 6.0)
GRPO = accepted(Rung.GRPO, HIGH, HIGH_TEST, 9.0)
BASIS = "(152 test tasks that no decision has used; 30% as it is; target 90%.)"
UNTESTED = as_it_is(LOW)

ENDS: dict[str, tuple[ImprovementOut, str]] = {
    "three rungs": (
        improvement(REACHED, START, PROMPT, IMITATION, GRPO),
        "A prompt alone reached 71% for $0.40; imitation 84% for 6 minutes; GRPO 93% for 9 more minutes; "
        f"nothing else was needed. {BASIS}",
    ),
    "prompts without gain": (
        improvement(
            REACHED,
            START,
            refused(Rung.PROMPT, "careful"),
            refused(Rung.PROMPT, "short"),
            accepted(Rung.IMITATION, HIGH, HIGH_TEST, 5 / 3),
        ),
        f"Two prompts showed no gain. Imitation reached 93% for 1:40 minutes; nothing else was needed. {BASIS}",
    ),
    "one prompt and a model without gain": (
        improvement(REACHED, START, refused(Rung.PROMPT), refused(Rung.MODEL), refused(Rung.IMITATION), GRPO),
        "A prompt, another model and imitation showed no gain. GRPO reached 93% for 9 minutes; "
        f"nothing else was needed. {BASIS}",
    ),
    "the price of a rung has all of its candidates": (
        improvement(REACHED, START, refused(Rung.PROMPT), accepted(Rung.PROMPT, HIGH, HIGH_TEST, 0.5)),
        f"A prompt alone reached 93% for 45 seconds; nothing else was needed. {BASIS}",
    ),
    "more dollars": (
        improvement(REACHED, START, PROMPT, accepted(Rung.MODEL, HIGH, HIGH_TEST, 1.0, usd=2.0)),
        f"A prompt alone reached 71% for $0.40; another model 93% for $2.00 more; nothing else was needed. {BASIS}",
    ),
    "the newest of several checkpoints": (
        improvement(REACHED, START, accepted(Rung.GRPO, MIDDLE, None, 2.0), accepted(Rung.GRPO, HIGH, HIGH_TEST, 1.0)),
        f"GRPO reached 93% for 3 minutes; nothing else was needed. {BASIS}",
    ),
    "an unreachable prompt and a failed run": (
        improvement(
            BEST,
            START,
            refused(Rung.PROMPT, state=CandidateState.UNREACHABLE),
            IMITATION,
            refused(Rung.GRPO, state=CandidateState.FAILED),
        ),
        "The target of 90% was not reached by all that there was to try. A prompt did not reach the model, and so "
        f"could not be tried. GRPO failed. Imitation reached 84% for 6 minutes. {BASIS}",
    ),
    "as it is": (
        improvement(REACHED, as_it_is(HIGH, HIGH_TEST)),
        "The agent reaches 93% as it is; nothing was needed. (152 test tasks that no decision has used; target 90%.)",
    ),
    "not confirmed": (
        improvement(REACHED, START, accepted(Rung.PROMPT, HIGH, MIDDLE_TEST, 1.0)),
        "The target of 90% was reached on validation tasks with 94%, and is not confirmed: 71% [63, 78] on test tasks. "
        f"A prompt alone reached 71% for 1 minute. {BASIS}",
    ),
    "as it is, not confirmed": (
        improvement(REACHED, as_it_is(HIGH, MIDDLE_TEST)),
        "The target of 90% was reached on validation tasks with 94%, and is not confirmed: 71% [63, 78] on test tasks. "
        "The agent reaches 71% as it is. (152 test tasks that no decision has used; target 90%.)",
    ),
    "without a target": (
        improvement(BEST, START, PROMPT, target=None),
        "Everything was tried. A prompt alone reached 71% for $0.40. "
        "(152 test tasks that no decision has used; 30% as it is.)",
    ),
    "budget": (
        improvement(ImprovementStatus.BUDGET, START, PROMPT),
        f"The budget was used up before the target of 90% was reached. A prompt alone reached 71% for $0.40. {BASIS}",
    ),
    "budget before anything": (
        improvement(ImprovementStatus.BUDGET, as_it_is(None), target=None),
        "The budget was used up.",
    ),
    "cancelled": (
        improvement(ImprovementStatus.CANCELLED, UNTESTED),
        "It was cancelled before the target of 90% was reached. The agent reaches 31% as it is. "
        "(64 validation tasks; target 90%.)",
    ),
    "failed": (
        improvement(ImprovementStatus.FAILED, as_it_is(None), reason="The base was deleted."),
        "It failed: The base was deleted.",
    ),
    "paused": (
        improvement(ImprovementStatus.PAUSED, UNTESTED),
        "It has not ended. The agent reaches 31% as it is. (64 validation tasks; target 90%.)",
    ),
    "no test tasks": (
        improvement(REACHED, UNTESTED, accepted(Rung.PROMPT, HIGH), test=0),
        "A prompt alone reached 94% for 1 minute; nothing else was needed. "
        "(64 validation tasks that also decided, so expect less on others; 31% as it is; target 90%.)",
    ),
    "test tasks that were looked at": (
        improvement(REACHED, START, GRPO, test_looks=2),
        "GRPO reached 93% for 9 minutes; nothing else was needed. "
        "(152 test tasks that were looked at once before; 30% as it is; target 90%.)",
    ),
    "test tasks that were often looked at": (
        improvement(REACHED, as_it_is(HIGH, HIGH_TEST), test_looks=4),
        "The agent reaches 93% as it is; nothing was needed. "
        "(152 test tasks that were looked at 3 times before; target 90%.)",
    ),
    "one task": (
        improvement(REACHED, as_it_is(success(0, 1), success(0, 1)), PROMPT, validation=1, test=1),
        "The target of 90% was reached on validation tasks with 70%, and is not confirmed: 71% [63, 78] on test tasks. "
        "A prompt alone reached 71% for $0.40. (1 test task that no decision has used; 0% as it is; target 90%.)",
    ),
    "one test task that was looked at": (
        improvement(REACHED, as_it_is(HIGH, success(1, 1)), test=1, test_looks=3),
        "The agent reaches 100% as it is; nothing was needed. "
        "(1 test task that was looked at twice before; target 90%.)",
    ),
    "nothing": (
        improvement(NOTHING, UNTESTED, *[refused(Rung.PROMPT)] * 12, smallest_gain=0.25),
        "12 prompts showed no gain. Nothing helped: gains, if there are any, are below what 64 validation tasks can "
        "show. A gain of 25 points would have been shown with 80% probability. Next: add validation tasks, so that "
        "smaller gains can be shown. (64 validation tasks; 31% as it is; target 90%.)",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_said_in_a_sentence(end: str) -> None:
    ended, text = ENDS[end]
    assert sentence(ended) == text


@pytest.mark.parametrize(
    ("solved", "tasks", "target", "text"),
    [
        (199, 200, 0.9, "99%"),
        (200, 200, 0.9, "100%"),
        (1, 300, 0.9, "1%"),
        (0, 300, 0.9, "0%"),
        (179, 200, 0.9, "89.5%"),
        (180, 200, 0.9, "90%"),
        (894, 1000, 0.892, "89.4%"),
        (184, 200, 0.925, "92%"),
        (185, 200, 0.925, "92.5%"),
    ],
)
def test_what_is_rounded_is_on_the_same_side(solved: int, tasks: int, target: float, text: str) -> None:
    ended = improvement(BEST, as_it_is(success(solved, tasks)), target=target, test=0)
    assert f" reaches {text} as it is" in sentence(ended)


PATTERN = pattern("gave up: never found the source", 8, 15, "01K7")
REASONS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"broken": ["cheating earns 0.4 on average"]},
        "before the environment is repaired: cheating earns 0.4",
        "repair it",
    ),
    (
        {"pilot": {"groups_differ": 0.0, "solved_once": 0.0}},
        "all attempts at a task had the same reward",
        "demonstrations",
    ),
    ({"pilot": {"groups_differ": 0.0, "solved_once": 1.0}}, "all attempts at a task had the same", "another judge"),
    ({"pilot": {"inconsistent": 0.38}}, "differ on 38% of the tasks", "add validation tasks"),
    ({"causes": ["Rewards come from length.", "other"]}, "The diagnosis says: Rewards come from length.", "this cause"),
    ({"pattern": PATTERN}, '8 of 15 failures are "gave up: never', "demonstrate these tasks"),
    ({}, "below what 64 validation tasks can show. Next", "add validation tasks"),
]


def _without_help(*reasons: dict[str, Any]) -> tuple[ImprovementOut, list[str], list[str]]:
    fields: dict[str, Any] = {}
    pilot: dict[str, Any] = {}
    for reason in reversed(reasons):
        fields |= reason
        pilot |= reason.get("pilot", {})
    broken, causes = fields.pop("broken", []), fields.pop("causes", [])
    return improvement(NOTHING, UNTESTED, **fields | {"pilot": PILOT.model_copy(update=pilot)}), broken, causes


@pytest.mark.parametrize("number", range(len(REASONS)))
def test_the_first_reason_that_fits_is_named_with_one_thing_to_do(number: int) -> None:
    _, why, next_thing = REASONS[number]
    text = nothing_helps(*_without_help(*[reason for reason, _, _ in REASONS[number:]]))
    assert why in text
    assert next_thing in text.partition("Next: ")[2]
    assert text.count("Next: ") == 1


def test_a_pattern_of_half_of_the_failures_is_no_reason() -> None:
    half = pattern("gave up", 5, 10)
    assert "below what 64" in nothing_helps(improvement(NOTHING, UNTESTED, pattern=half))
    assert "6 of 10 failures" in nothing_helps(improvement(NOTHING, UNTESTED, pattern=pattern("gave up", 6, 10)))


def test_a_success_that_was_not_measured_is_unknown() -> None:
    ended = improvement(BEST, as_it_is(LOW), accepted(Rung.GRPO, None))
    assert "GRPO reached an unknown success for 1 minute." in sentence(ended)
