"""Why an iteration taught nothing."""

from typing import Any, cast

import pytest

from learnloop_service.environment.base import Scenario
from learnloop_service.judges.base import Score
from learnloop_service.training.no_signal import NoSignal, no_signal_of
from learnloop_service.training.types import FailureKind, Group, Rollout, RolloutFailure, ScoredRollout

SCENARIO = Scenario("s", "train", {})


def scored(reward: float | None, finish: str = "answered", *, failed: bool = False) -> ScoredRollout:
    failure = RolloutFailure(FailureKind.TIMEOUT, "too slow") if failed else None
    rollout = Rollout("r", SCENARIO, cast(Any, None), {"finish": finish}, failure)
    return ScoredRollout(rollout, Score(None, ""), reward, {}, success=False)


def group(skipped: Any, *rollouts: ScoredRollout) -> Group:
    return Group(SCENARIO, rollouts, skipped)


EQUAL = group("no_signal", scored(0.5), scored(0.5))
SILENT = group("unscored", scored(None), scored(None))
FAILED = group("unscored", scored(None, failed=True), scored(0.5))
MALFORMED = group("no_signal", scored(-0.5, "malformed"), scored(-0.5, "malformed"))


@pytest.mark.parametrize(
    ("groups", "cause"),
    [
        ([], None),
        ([EQUAL, group(None, scored(0.0), scored(1.0))], None),
        ([EQUAL, EQUAL], NoSignal.CONSTANT_REWARD),
        ([EQUAL, SILENT], NoSignal.CONSTANT_REWARD),
        ([EQUAL, group("no_signal", scored(0.5), scored(0.5 + 1e-15))], NoSignal.CONSTANT_REWARD),
        ([EQUAL, MALFORMED], NoSignal.EQUAL_REWARDS),
        ([MALFORMED, MALFORMED], NoSignal.MALFORMED),
        ([SILENT, FAILED], NoSignal.JUDGE_SILENT),
        ([FAILED, FAILED], NoSignal.ROLLOUTS_FAILED),
    ],
)
def test_the_cause(groups: list[Group], cause: NoSignal | None) -> None:
    assert no_signal_of(groups) is cause


def test_every_cause_is_explained() -> None:
    assert len({cause.explanation for cause in NoSignal}) == len(NoSignal)
