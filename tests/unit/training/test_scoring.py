"""From verdicts to rewards, advantages and groups."""

import asyncio
import math
from collections.abc import Sequence
from math import fsum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Outcome, Scenario
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.base import Candidate, JudgeCall, Judgement, Score
from learnloop_service.training.scoring import assign_rewards, judge_group, malformed_share, success_rate, summarise
from learnloop_service.training.types import FailureKind, Group, Rollout, RolloutFailure
from tests.fakes.scripted_learning import ScriptedTrajectory

SCENARIO = Scenario("s", "train", {}, {"answer": "x"})
ENVIRONMENT = SyntheticEmailSearch()


CALL = JudgeCall("verdicts", "none", 0, 0, None, 0, 0.0)


class Verdicts:
    """A judge that gives these scores, or raises."""

    name = "verdicts"

    def __init__(self, *scores: Score | Exception) -> None:
        self.scores = scores
        self.seen: list[str] = []

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        self.seen = [candidate.id for candidate in candidates]
        for score in self.scores:
            if isinstance(score, Exception):
                raise score
        return Judgement([score for score in self.scores if isinstance(score, Score)], [CALL])


def rollout(id: str, error: str | None = None, **changes: Any) -> Rollout:
    facts = dict.fromkeys(("found_source", "read_source", "read_invalid", "sources_correct"), True)
    outcome = {"finish": "answered", "sources": ["a"], "turns": 4, "max_turns": 8, **facts, **changes}
    trajectory: Any = ScriptedTrajectory()
    return Rollout(id, SCENARIO, trajectory, outcome, RolloutFailure(FailureKind.OTHER, error) if error else None)


async def scored(judge: Verdicts, *rollouts: Rollout) -> Group:
    return assign_rewards(ENVIRONMENT, SCENARIO, rollouts, await judge_group(judge, SCENARIO, rollouts))


RIGHT, WRONG, NONE = Score(1.0, "right"), Score(0.0, "wrong"), Score(None, "cannot tell")


async def test_the_trajectory_gets_the_sum_of_the_parts() -> None:
    group = await scored(Verdicts(RIGHT, WRONG), rollout("a"), rollout("b"))
    assert group.skipped is None
    assert group.judge_calls == (CALL,)
    for scored_rollout in group.rollouts:
        assert (
            scored_rollout.reward
            == fsum(scored_rollout.reward_parts.values())
            == scored_rollout.rollout.trajectory.reward
        )
    assert [scored_rollout.success for scored_rollout in group.rollouts] == [True, False]
    assert [scored_rollout.score.explanation for scored_rollout in group.rollouts] == ["right", "wrong"]
    assert [scored_rollout.advantage for scored_rollout in group.rollouts] == [
        pytest.approx(1, abs=1e-4),
        pytest.approx(-1, abs=1e-4),
    ]


async def test_a_failed_rollout_is_not_judged_and_has_no_reward() -> None:
    judge = Verdicts(RIGHT, WRONG)
    group = await scored(judge, rollout("a"), rollout("b", error="it broke"), rollout("c"))
    assert judge.seen == ["a", "c"]
    assert [scored_rollout.rollout.id for scored_rollout in group.rollouts] == ["a", "b", "c"]
    broken = group.rollouts[1]
    assert broken.reward is None
    assert broken.advantage is None
    assert broken.success is False
    assert dict(broken.reward_parts) == {}
    assert "it broke" in broken.score.explanation
    assert group.skipped is None


async def test_what_the_judge_cannot_tell_is_left_out() -> None:
    group = await scored(Verdicts(NONE, RIGHT, WRONG), rollout("a"), rollout("b"), rollout("c"))
    assert group.rollouts[0].reward is None
    assert group.rollouts[0].score == NONE
    assert group.skipped is None


@pytest.mark.parametrize(
    ("scores", "errors", "skipped"),
    [
        ((RIGHT, RIGHT), (None, None), "no_signal"),
        ((Score(0.3, "right"), Score(math.nextafter(0.3, 1), "right")), (None, None), "no_signal"),
        ((RIGHT,), (None, "broke"), "unscored"),
        ((RIGHT, NONE), (None, None), "unscored"),
        ((NONE, NONE), (None, None), "unscored"),
        ((), ("broke", "broke"), "unscored"),
        ((RuntimeError("no key"),), (None, None), "unscored"),
        ((RIGHT,), (None, None), "unscored"),
    ],
)
async def test_groups_that_teach_nothing(scores: Any, errors: Any, skipped: str) -> None:
    group = await scored(Verdicts(*scores), *(rollout(f"{n}", error) for n, error in enumerate(errors)))
    assert group.skipped == skipped
    assert len(group.rollouts) == 2


@pytest.mark.parametrize(
    ("scores", "reason"),
    [((RuntimeError("no key"),), "RuntimeError: no key"), ((RIGHT,), "it gave 1 scores for 2 candidates")],
)
async def test_a_failing_judge_says_why(scores: Any, reason: str) -> None:
    group = await scored(Verdicts(*scores), rollout("a"), rollout("b"))
    assert [scored_rollout.reward for scored_rollout in group.rollouts] == [None, None]
    assert all("the judge verdicts failed" in scored_rollout.score.explanation for scored_rollout in group.rollouts)
    assert all(reason in scored_rollout.score.explanation for scored_rollout in group.rollouts)


@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=12))
def test_advantages_are_centred_and_scaled(values: list[float | None]) -> None:
    scores = [Score(value, "") for value in values]
    # The turns make the rewards of right answers differ.
    rollouts = [rollout(f"{n}", turns=n % 8) for n in range(len(values))]
    group = asyncio.run(scored(Verdicts(*scores), *rollouts))
    advantages = [scored_rollout.advantage for scored_rollout in group.rollouts if scored_rollout.advantage is not None]
    assert len(advantages) == sum(value is not None for value in values)
    if advantages:
        assert sum(advantages) == pytest.approx(0, abs=1e-6)
        assert sum(value**2 for value in advantages) <= len(advantages) + 1e-6
    if group.skipped is None:
        assert sum(value**2 for value in advantages) == pytest.approx(len(advantages), rel=1e-3)


async def test_figures_are_of_what_was_scored() -> None:
    group = await scored(
        Verdicts(RIGHT, NONE, WRONG), rollout("a"), rollout("b"), rollout("c"), rollout("d", error="broke")
    )
    # The failed one counts as no success; the one that the judge could not score does not count.
    assert success_rate(group.rollouts) == pytest.approx(1 / 3)
    rewards = summarise(group.rollouts)
    assert rewards.count == 2
    assert rewards.min == group.rollouts[2].reward
    assert rewards.max == group.rollouts[0].reward
    assert rewards.mean == rewards.median == pytest.approx(((rewards.min or 0) + (rewards.max or 0)) / 2)


def test_figures_of_nothing() -> None:
    nothing = summarise([])
    assert nothing.mean is None
    assert nothing.median is None
    assert nothing.min is None
    assert nothing.max is None
    assert nothing.count == 0
    assert success_rate([]) is None
    assert malformed_share([]) is None


class Reporting(SyntheticEmailSearch):
    """An environment whose rewards are what the outcome says."""

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        return dict(outcome["parts"])


@pytest.mark.parametrize(
    "parts",
    [{"a": 1e200}, {"a": 1e308, "b": 1e308}, {"a": -1e10}, {"a": math.nan}, {"a": math.inf, "b": -math.inf}],
)
def test_a_reward_that_cannot_be_computed_with_costs_that_rollout_alone(parts: dict[str, float]) -> None:
    rollouts = [rollout("a", parts={"a": 1.0}), rollout("b", parts={"a": 0.0}), rollout("c", parts=parts)]
    group = assign_rewards(Reporting(), SCENARIO, rollouts, Judgement([RIGHT] * 3))
    assert [scored_rollout.reward for scored_rollout in group.rollouts] == [1.0, 0.0, None]
    assert "the reward is not a number from -1e+09 to 1e+09" in group.rollouts[2].score.explanation
    assert group.skipped is None
    assert group.rollouts[2].advantage is None
    assert summarise(group.rollouts).mean == 0.5


async def test_a_reported_reward_that_is_no_number_costs_that_rollout_alone() -> None:
    rollouts = [rollout("a", reported_reward=1.0), rollout("b", reported_reward=math.nan)]
    judgement = await judge_group(Verdicts(), SCENARIO, rollouts)
    assert [score.value for score in judgement.scores] == [1.0, None]
