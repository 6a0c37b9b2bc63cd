"""Draws by difficulty: their probabilities are exact, and they follow from seed and earlier iterations alone."""

from collections import Counter
from itertools import combinations
from math import sqrt
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.environment.base import Scenario
from learnloop_service.training.difficulty import Draw, _by_rank, draw_by_difficulty, reward_range
from learnloop_service.training.group_facts import GroupFacts

COUNT, ROLLOUTS = 6, 8
POOL = [Scenario(f"s{number}", "train", {}) for number in range(20)]


def group(scenario: str, successes: int, *, low: float = 0.0, high: float = 1.0, spread: float = 0.0) -> GroupFacts:
    share = successes / ROLLOUTS
    spread = spread or (high - low) * sqrt(share * (1 - share))
    return GroupFacts(
        ROLLOUTS, scored=ROLLOUTS, successes=successes, scenario=scenario, lowest=low, highest=high, spread=spread
    )


def history(random: Random, iterations: int = 4) -> dict[int, list[GroupFacts]]:
    return {
        iteration: [group(scenario.id, random.choice([0, 0, 3, 8])) for scenario in random.sample(POOL, COUNT)]
        for iteration in range(1, iterations + 1)
    }


def draw(earlier: dict[int, list[GroupFacts]], seed: int = 0, extra: int = 0, count: int = COUNT) -> tuple[Draw, Draw]:
    return draw_by_difficulty(POOL, earlier, count=count, extra=extra, seed=seed, iteration=len(earlier) + 1)


@given(st.integers(2, 9), st.data())
def test_the_probability_of_each_rank_is_that_of_all_ways_to_draw(size: int, data: st.DataObject) -> None:
    uniform = data.draw(st.integers(1, size - 1))
    places = data.draw(st.integers(0, size - uniform))
    ways = [*combinations(range(size), uniform)]
    drawn = Counter[int]()
    for chosen in ways:
        drawn.update([*chosen, *[rank for rank in range(size) if rank not in chosen][:places]])
    by_rank = _by_rank(size, uniform, places)
    assert by_rank.tolist() == pytest.approx([drawn[rank] / len(ways) for rank in range(size)], abs=1e-12)
    assert by_rank.sum() == pytest.approx(uniform + places)


@given(st.integers(0, 10_000), st.integers(1, 19), st.integers(0, 20))
def test_a_draw_has_its_size_and_no_scenario_twice(seed: int, count: int, extra: int) -> None:
    scheduled, further = draw(history(Random(seed)), seed, extra, count)
    ids = [scenario.id for scenario, _ in [*scheduled, *further]]
    assert len(scheduled) == count
    assert len(further) == min(extra, len(POOL) - count)
    assert len({*ids}) == len(ids)
    assert all(0 < inclusion <= 1 for _, inclusion in [*scheduled, *further])
    assert draw(history(Random(seed)), seed, extra, count) == (scheduled, further)
    assert draw(history(Random(seed)), seed, 0, count)[0] == scheduled, "replacements change nothing"


def test_weighted_by_its_inverse_probability_each_scenario_counts_once() -> None:
    """The mean of 1/p over draws is 1 for each scenario, within five standard errors: a chance of 1 in 87,000."""
    earlier, draws = history(Random(5)), 1_500
    weights: dict[str, list[float]] = {scenario.id: [] for scenario in POOL}
    for seed in range(draws):
        for scenario, inclusion in draw(earlier, seed)[0]:
            weights[scenario.id].append(1 / inclusion)
    for of_scenario in weights.values():
        mean = sum(of_scenario) / draws
        error = sqrt((sum(weight**2 for weight in of_scenario) / draws - mean**2) / draws)
        assert abs(mean - 1) < 5 * error + 1e-9
    sizes = [sum(1 / inclusion for _, inclusion in draw(earlier, seed)[0]) for seed in range(draws)]
    assert fmean(sizes) == pytest.approx(len(POOL), rel=0.03)


def test_before_anything_is_tried_all_scenarios_are_equally_likely() -> None:
    scheduled, further = draw({}, extra=3)
    assert [inclusion for _, inclusion in scheduled] == pytest.approx([COUNT / len(POOL)] * COUNT)
    assert [inclusion for _, inclusion in further] == pytest.approx([(COUNT + 3) / len(POOL)] * 3)


def test_what_teaches_is_drawn_more_often_and_what_was_seen_long_ago_counts_less() -> None:
    teaching = {scenario.id for scenario in POOL[:5]}
    tried = [group(scenario.id, 4 if scenario.id in teaching else 0) for scenario in POOL]
    share = fmean(scenario.id in teaching for seed in range(200) for scenario, _ in draw({1: tried, 2: tried}, seed)[0])
    assert share > 0.5
    long_ago = {1: tried, **{iteration: [] for iteration in range(2, 40)}}
    forgotten = fmean(scenario.id in teaching for seed in range(200) for scenario, _ in draw(long_ago, seed)[0])
    assert forgotten < 0.4


@pytest.mark.parametrize("successes", [0, ROLLOUTS])
def test_if_all_are_solved_or_none_is_all_are_drawn(successes: int) -> None:
    tried = {1: [group(scenario.id, successes, low=1.0) for scenario in POOL]}
    counts = Counter(scenario.id for seed in range(300) for scenario, _ in draw(tried, seed)[0])
    assert min(counts.values()) > 300 * COUNT / len(POOL) / 2
    assert len(counts) == len(POOL)


def test_rewards_that_differ_count_where_successes_do_not_by_the_share_of_their_range() -> None:
    tried = [group("s0", 0, low=-2, high=-2), *(group(scenario.id, 8, low=2, high=2) for scenario in POOL[1:18])]
    almost = group("s18", 8, low=1.75, high=1.76, spread=0.005)
    apart = group("s19", 0, low=-2, high=1, spread=1.5)
    earlier = {number: [*tried, almost, apart] for number in range(1, 4)}
    assert reward_range(earlier) == (-2, 2)
    counts = Counter(scenario.id for seed in range(300) for scenario, _ in draw(earlier, seed)[0])
    assert counts["s19"] > 1.5 * counts["s18"]


def test_unscored_groups_and_scenarios_that_are_gone_change_nothing() -> None:
    earlier = history(Random(1))
    more = {number: [*groups, group("gone", 4), GroupFacts(8, scenario="s1")] for number, groups in earlier.items()}
    assert draw(more) == draw(earlier)
