"""Draws an iteration's scenarios: half of them uniformly, the others by how much the earlier iterations say they teach.

A group teaches by its differences, so a scenario is worth p(1-p), where p is its share of successes. The environment's
rewards can differ where successes do not, so p is the share of two-valued rewards that would differ as much as the
group's successes or its rewards do, whichever differ more. Where rewards are relative to the group, as with RULER, each
group differs as much as the others, and the draw is nearly uniform.

Thompson sampling (Thompson, 1933): p is drawn from its Beta distribution, and the scenarios with the largest p(1-p) are
taken. What an iteration showed counts a tenth less after each further one, because the policy moves. Of the scenarios
that were not tried yet only as many take part as are drawn: among all of them there would always be luckier ones.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from learnloop_service.environment.base import Scenario
from learnloop_service.training.group_facts import GroupFacts

Draw = Sequence[tuple[Scenario, float]]
"""Drawn scenarios, each with the probability with which the iteration has it."""
MOST_SCENARIOS = 20_000
"""Number of scenarios of a pool. Of more, a run would see hardly any twice."""
_KEPT = 0.9
"""Share of an iteration's counts that is kept after a further one."""


def draw_by_difficulty(
    pool: Sequence[Scenario],
    earlier: Mapping[int, Sequence[GroupFacts]],
    *,
    count: int,
    extra: int,
    seed: int,
    iteration: int,
) -> tuple[Draw, Draw]:
    """Draw `count` scenarios of a larger pool, and up to `extra` that can replace others. None is drawn twice.

    The draw follows from the seed and the groups of the earlier iterations. Half are drawn uniformly from all (rather
    than in passes, so that probabilities do not depend on earlier draws); then the first of the others in the order of
    their worth are taken. Given that order, a scenario is in the second half if it is not in the first one, and if
    enough of those before it are, so that a place is left: a hypergeometric tail. Untried ones are interchangeable, so
    each has their mean.
    """
    random, size, uniform = np.random.default_rng((seed, iteration)), len(pool), -(-count // 2)
    right, wrong = _counts(pool, earlier, iteration)
    untried = right + wrong == 0
    worth = -random.random(size)
    lucky = np.argsort(np.where(untried, worth, -2.0))[::-1][: count - uniform]
    compared = np.union1d(np.flatnonzero(~untried), lucky)
    chance = random.beta(1 + right[compared], 1 + wrong[compared])
    worth[compared] = chance * (1 - chance)
    order = np.argsort(-worth, kind="stable")
    chosen = random.choice(size, uniform, replace=False)
    rest = order[~np.isin(order, chosen)]
    further = rest[count - uniform : count - uniform + extra]

    def drawn(numbers: Iterable[np.intp], places: int) -> Draw:
        inclusion = np.empty(size)
        inclusion[order] = _by_rank(size, uniform, places)
        inclusion[untried] = inclusion[untried].mean() if untried.any() else 0.0
        return [(pool[int(number)], float(inclusion[number])) for number in numbers]

    return (
        drawn([*chosen, *rest[: count - uniform]], count - uniform),
        drawn(further, count - uniform + len(further)),
    )


def reward_range(groups: Mapping[int, Sequence[GroupFacts]]) -> tuple[float, float]:
    """Return the lowest and the highest reward of the groups; (0, 0) if none has any."""
    rewarded = [group for of_iteration in groups.values() for group in of_iteration if group.scored]
    return min((group.lowest for group in rewarded), default=0.0), max(
        (group.highest for group in rewarded), default=0.0
    )


def _counts(
    pool: Sequence[Scenario], earlier: Mapping[int, Sequence[GroupFacts]], iteration: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how many rollouts of each scenario count as right and as wrong, as far as they still count."""
    numbers = {scenario.id: number for number, scenario in enumerate(pool)}
    low, high = reward_range(earlier)
    right, wrong = np.zeros(len(pool)), np.zeros(len(pool))
    for of, groups in sorted(earlier.items()):
        for group in groups:
            if group.scored and (number := numbers.get(group.scenario)) is not None:
                kept, share = group.scored * _KEPT ** (iteration - 1 - of), _share(group, high - low)
                right[number] += kept * share
                wrong[number] += kept * (1 - share)
    return right, wrong


def _share(group: GroupFacts, whole: float) -> float:
    """Return the share p of two-valued rewards that have the group's variance p(1-p)."""
    success = group.successes / group.scored
    variance = max(success * (1 - success), (group.spread / whole) ** 2 if whole else 0.0)
    distance = math.sqrt(max(0.0, 0.25 - variance))
    return 0.5 + distance if success > 0.5 else 0.5 - distance


def _by_rank(size: int, uniform: int, places: int) -> NDArray[np.float64]:
    """Return the probability of each rank: of being drawn uniformly, or of getting one of the places after that."""
    by_rank = np.full(size, uniform / size)
    by_rank[:places] = 1.0
    ways = math.comb(size - 1, uniform)
    for rank in range(places, min(places + uniform, size)):
        before = range(rank - places + 1, min(rank, uniform) + 1)
        enough = sum(math.comb(rank, drawn) * math.comb(size - 1 - rank, uniform - drawn) for drawn in before)
        by_rank[rank] += (1 - uniform / size) * (enough / ways)
    return by_rank
