"""The figures of iterations that replace groups estimate what the policy does on scheduled scenarios."""

from random import Random
from statistics import fmean, median
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Scenario
from learnloop_service.judges.base import Score
from learnloop_service.training.inclusion import included, others, taught_nothing, weight, whole
from learnloop_service.training.scoring import malformed_share, success_rate, summarise
from learnloop_service.training.types import Group, Rollout, ScoredRollout

GROUPS, ROLLOUTS = 16, 8


def scenario(name: object) -> Scenario:
    return Scenario(str(name), "train", {}, {})


def attempted(name: object, random: Random) -> Group:
    """A group whose scenario is easy, hard or in between, each with the same probability."""
    chance = random.choice([1.0, 0.0, 0.5, 0.9])
    rewards = [float(random.random() < chance) for _ in range(ROLLOUTS)]
    rollouts = [
        ScoredRollout(
            Rollout(f"{name}-{number}", scenario(name), cast(Any, None), {"finish": "malformed" if reward else "done"}),
            Score(reward, ""),
            reward,
            {},
            success=reward == 1.0,
        )
        for number, reward in enumerate(rewards)
    ]
    return Group(scenario(name), tuple(rollouts), "no_signal" if len(set(rewards)) == 1 else None)


def iteration(random: Random, harder: float = 0.0) -> tuple[list[Group], list[Group]]:
    """The scheduled groups, and those that replace the ones of the iteration before that taught nothing."""
    idle = taught_nothing(attempted(f"e{number}", random) for number in range(GROUPS))
    scheduled = [attempted(number, random) for number in range(GROUPS)]
    extra = [included(attempted(f"r{n}", random), len(idle) / GROUPS, old) for n, old in enumerate(idle)]
    return scheduled, extra


@given(st.integers(0, 10_000))
def test_figures_are_those_of_the_scheduled_groups(seed: int) -> None:
    scheduled, extra = iteration(Random(seed))
    counted = [scored_rollout for group in scheduled for scored_rollout in group.rollouts]
    everything = [*counted, *(scored_rollout for group in extra for scored_rollout in group.rollouts)]
    rewards = [scored_rollout.reward or 0.0 for scored_rollout in counted]
    figures = summarise(everything)
    assert figures.mean == fmean(rewards)
    assert figures.median == median(rewards)
    assert figures.count == len(rewards)
    assert figures.min == min(rewards)
    assert figures.max == max(rewards)
    assert success_rate(everything) == fmean(scored_rollout.success for scored_rollout in counted)
    assert malformed_share(everything) == fmean(
        scored_rollout.rollout.outcome["finish"] == "malformed" for scored_rollout in counted
    )


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=40))
def test_without_weights_the_figures_are_the_usual_ones(rewards: list[float]) -> None:
    rollouts = [
        ScoredRollout(Rollout(str(n), scenario(n), cast(Any, None), {}), Score(0.5, ""), reward, {}, success=False)
        for n, reward in enumerate(rewards)
    ]
    figures = summarise(rollouts)
    assert figures.mean == fmean(rewards)
    assert figures.median == median(rewards)


def test_a_rollout_weighs_its_inverse_probability_a_replacement_nothing() -> None:
    [one] = [attempted("a", Random(1)).rollouts[0]]
    group = Group(scenario("a"), (one,))
    assert weight(one) == 1.0
    assert weight(included(group, 0.25, "b").rollouts[0]) == 0.0
    assert weight(included(group, 1.0, "b").rollouts[0]) == 0.0, "also if all groups were replaced"


def test_the_reserve_is_used_once_and_without_what_was_attempted() -> None:
    reserve, scheduled = ([scenario(name) for name in names] for names in ("bccad", "ab"))
    assert [other.id for other in others(reserve, scheduled)] == ["c", "d"]


@given(st.lists(st.floats(0, 1e3)))
def test_whole_counts_are_close_and_have_the_sum(counts: list[float]) -> None:
    rounded = whole(counts)
    assert sum(rounded) == round(sum(counts))
    assert all(abs(one - other) <= 1.001 for one, other in zip(rounded, counts, strict=True))
