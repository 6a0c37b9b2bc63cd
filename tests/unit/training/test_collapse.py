"""A step that broke the policy is noticed, and noise is not."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import comb
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.collapse import CHANCE, FALL, RESTORED, Collapse, CollapseWatch, chance_of_fall
from learnloop_service.training.diagnosis.collapses import rolled_out
from learnloop_service.training.diagnosis.facts import Facts, GroupFacts

ROLLOUTS = 8


def group(successes: int, malformed: int = 0, rollouts: int = ROLLOUTS) -> GroupFacts:
    return GroupFacts(rollouts, malformed=malformed, scored=rollouts, successes=successes)


def iteration(number: int, groups: Sequence[GroupFacts], step: int | None = None, **metrics: float) -> Facts:
    sampled = number - 1 if step is None else step
    return Facts(number, sampled + 1, sampled_step=sampled, groups=tuple(groups), metrics=metrics)


def found_in(*facts: Facts) -> list[Collapse | None]:
    return [collapse for _, collapse in CollapseWatch().all(rolled_out(facts))]


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6),
)
def test_the_chance_is_the_share_of_all_divisions(before: list[float], after: list[float]) -> None:
    both = [*before, *after]
    sums = [sum(part) for part in combinations(both, len(after))]
    assert chance_of_fall(before, after) == pytest.approx(sum(total <= sum(after) for total in sums) / len(sums))


def drawn(random: Random, groups: int, alpha: float, beta: float, *, fall: float = 1.0) -> list[GroupFacts]:
    """Groups of unequal difficulty, whose rollouts succeed by the same chance within a group."""
    chances = [fall * random.betavariate(alpha, beta) for _ in range(groups)]
    return [group(sum(random.random() < chance for _ in range(ROLLOUTS))) for chance in chances]


@pytest.mark.parametrize(("alpha", "beta"), [(0.05, 0.05), (0.5, 0.5), (2.0, 2.0), (3.0, 1.0)])
@pytest.mark.parametrize("groups", [8, 16])
def test_noise_is_no_collapse(alpha: float, beta: float, groups: int) -> None:
    """From groups that all rollouts or none solve (0.05) to ones of medium difficulty. 2,500 comparisons each."""
    random = Random(f"{alpha} {beta} {groups}")
    alarms, deep = 0, 0
    for _ in range(2_500):
        before, after = drawn(random, groups, alpha, beta), drawn(random, groups, alpha, beta)
        deep += sum(group.successes for group in before) - sum(group.successes for group in after) >= FALL * groups * 8
        alarms += found_in(iteration(1, before), iteration(2, after))[1] is not None
    assert alarms <= 2, "2,500 comparisons at a chance of 1e-4 have more than 2 alarms in 1 of 500 tests"
    assert deep > 100 or alpha > 1 or groups == 16, "a fall of 30 points alone would have been an alarm each time"


def test_the_fall_of_a_broken_step_is_seen_every_time() -> None:
    """85 to 24%, with scenarios of unequal difficulty, as a model of 270M parameters fell in one step."""
    random, missed = Random(3), 0
    for _ in range(200):
        before, after = drawn(random, 16, 3.4, 0.6), drawn(random, 16, 3.4, 0.6, fall=0.28)
        missed += found_in(iteration(1, before), iteration(2, after))[1] is None
    assert missed <= 2


def test_a_collapse_names_its_steps_and_figures() -> None:
    good = [group(7)] * 10
    collapse = found_in(iteration(5, good), iteration(6, [group(2, malformed=6)] * 10))[1]
    assert collapse == Collapse(6, 5, 4, "success", 0.875, 0.25, 1 / comb(20, 10), is_new=True)
    assert str(collapse) == "Since step 5, success fell from 88% to 25%"


def test_where_nothing_succeeds_malformed_replies_show_it() -> None:
    collapse = found_in(iteration(1, [group(0)] * 8), iteration(2, [group(0, malformed=6)] * 8))[1]
    assert collapse is not None
    assert collapse.figure == "malformed"
    assert collapse.before == 0.0
    assert collapse.after == 0.75
    assert collapse.chance < CHANCE


def test_rollouts_that_servers_lost_count_for_nothing() -> None:
    lost = replace(group(0), scored=0, infrastructure=ROLLOUTS)
    assert found_in(iteration(1, [group(7)] * 12), iteration(2, [*[lost] * 6, *[group(7)] * 6])) == [None, None]


def test_seven_groups_are_too_few_to_be_certain() -> None:
    assert found_in(iteration(1, [group(8)] * 7), iteration(2, [group(0)] * 7)) == [None, None]
    assert found_in(iteration(1, [group(8)] * 8), iteration(2, [group(0)] * 8))[1] is not None


def test_a_fall_without_a_step_between_is_not_the_policys() -> None:
    """An environment that broke, or a judge."""
    assert found_in(iteration(1, [group(8)] * 9, 3), iteration(2, [group(0)] * 9, 3)) == [None, None]


def test_a_collapse_lasts_until_rollouts_are_good_again() -> None:
    good, bad = [group(7)] * 9, [group(1)] * 9
    collapses = found_in(*(iteration(n, groups) for n, groups in enumerate([good, bad, bad, good, bad], 1)))
    assert [
        collapse and (collapse.iteration, collapse.step, collapse.good_step, collapse.is_new) for collapse in collapses
    ] == [
        None,
        (2, 1, 0, True),
        (3, 2, 0, False),
        None,
        (5, 4, 3, True),
    ]


def test_rollouts_of_the_policy_that_was_left_are_outdated() -> None:
    """With a staleness of 1: the third iteration's were sampled before the second went back, to weights of step 1."""
    good, bad = [group(7)] * 9, [group(1)] * 9
    watch = CollapseWatch()
    watched = list(
        watch.all(
            rolled_out(
                [
                    iteration(1, good, step=1),
                    replace(iteration(2, bad, step=2), step=4, metrics={RESTORED: 1.0}),
                    iteration(3, bad, step=3),
                    iteration(4, bad, step=4),
                    iteration(5, good, step=5),
                ]
            )
        )
    )
    assert [collapse is not None for _, collapse in watched] == [False, True, False, False, False]
    assert watch.restored == 1
    assert watch.is_outdated(3)
    assert not watch.is_outdated(4)


def test_a_harder_draw_is_no_collapse() -> None:
    """Half of the groups were drawn because they are hard. Of all scenarios, as many as before succeed."""
    before = [group(7)] * 16
    hard = [replace(group(0), represents=1.0)] * 8 + [replace(group(7), represents=20.0)] * 8
    assert found_in(iteration(1, before), iteration(2, hard, step=1)) == [None, None]
    broken = [replace(group(0), represents=1.0)] * 8 + [replace(group(0), represents=20.0)] * 8
    assert found_in(iteration(1, before), iteration(2, broken, step=1))[1] is not None
