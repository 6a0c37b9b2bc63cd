"""The figures of iterations that replace groups estimate what the policy does on scheduled scenarios."""

from random import Random
from statistics import fmean, median, stdev
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from environment.base import Scenario
from judges.base import Score
from training.inclusion import others, replacement, taught_nothing, weight
from training.scoring import malformed_share, success_rate, summarise
from training.types import Group, Rollout, ScoredRollout

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
    """The scheduled groups, and those that replace the ones that taught nothing."""
    scheduled = [attempted(number, random) for number in range(GROUPS)]
    idle = taught_nothing(scheduled)
    extra = [replacement(attempted(f"r{n}", random), old, len(idle) / GROUPS) for n, old in enumerate(idle)]
    return scheduled, extra


def test_the_figure_is_unbiased_and_the_pooled_one_is_not() -> None:
    """Here only solved groups are idle: an iteration that does well has more replacements, which pull it to the mean,
    so that its pooled figure is too low."""
    random = Random(5)
    shown, pooled = [], []
    for _ in range(4_000):
        scheduled = [_solved_or_mixed(random, number) for number in range(2)]
        idle = taught_nothing(scheduled)
        extra = [replacement(_solved_or_mixed(random, n + 2), old, len(idle) / 2) for n, old in enumerate(idle)]
        rollouts = [each for group in (*scheduled, *extra) for each in group.rollouts]
        shown.append(success_rate(rollouts) or 0.0)
        pooled.append(fmean(each.success for each in rollouts))
    error = stdev(shown) / len(shown) ** 0.5
    assert abs(fmean(shown) - 0.75) < 3 * error
    assert fmean(pooled) < 0.75 - 8 * error


def _solved_or_mixed(random: Random, name: int) -> Group:
    """A group of a scenario that is always solved, or in half of its rollouts: 75% success."""
    solved = random.random() < 0.5
    rewards = [1.0] * ROLLOUTS if solved else [1.0, 0.0] * (ROLLOUTS // 2)
    rollouts = [
        ScoredRollout(
            Rollout(f"{name}-{number}", scenario(name), cast(Any, None), {}), Score(reward, ""), reward, {}, reward == 1
        )
        for number, reward in enumerate(rewards)
    ]
    return Group(scenario(name), tuple(rollouts), "no_signal" if solved else None)


@given(st.integers(0, 10_000))
def test_figures_are_those_of_the_scheduled_groups(seed: int) -> None:
    scheduled, extra = iteration(Random(seed))
    own = [each for group in scheduled for each in group.rollouts]
    everything = [*own, *(each for group in extra for each in group.rollouts)]
    rewards = [each.reward or 0.0 for each in own]
    found = summarise(everything)
    assert (found.mean, found.median, found.count) == (fmean(rewards), median(rewards), len(rewards))
    assert (found.min, found.max) == (min(rewards), max(rewards))
    assert success_rate(everything) == fmean(each.success for each in own)
    assert malformed_share(everything) == fmean(each.rollout.outcome["finish"] == "malformed" for each in own)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=40))
def test_without_weights_the_figures_are_the_usual_ones(rewards: list[float]) -> None:
    rollouts = [
        ScoredRollout(Rollout(str(n), scenario(n), cast(Any, None), {}), Score(0.5, ""), reward, {}, success=False)
        for n, reward in enumerate(rewards)
    ]
    found = summarise(rollouts)
    assert (found.mean, found.median) == (fmean(rewards), median(rewards))


def test_a_rollout_weighs_the_inverse_of_its_probability_and_a_replacement_nothing() -> None:
    [one] = [attempted("a", Random(1)).rollouts[0]]
    group = Group(scenario("a"), (one,))
    assert weight(one) == 1.0
    assert weight(replacement(group, group, 0.25).rollouts[0]) == 0.0
    assert weight(replacement(group, group, 1.0).rollouts[0]) == 0.0, "also if all groups were replaced"


def test_the_reserve_is_used_once_and_without_what_was_attempted() -> None:
    groups = [Group(scenario(name), ()) for name in "ab"]
    assert [each.id for each in others([scenario(name) for name in "bccad"], groups)] == ["c", "d"]
