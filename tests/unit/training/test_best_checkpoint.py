"""The best checkpoint is the newest that cannot be distinguished from the one with the highest figures."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learnloop_service.training.best_checkpoint import BestCheckpoint, Validation


def _validation(right: Sequence[float], reward: float | None = None) -> Validation:
    mean = fmean(right)
    return Validation(mean, mean if reward is None else reward, {f"s{n}": success for n, success in enumerate(right)})


def _first(count: int, of: int = 64) -> Validation:
    return _validation([1.0] * count + [0.0] * (of - count))


def _best(*validations: Validation) -> list[int]:
    steps, best = [], BestCheckpoint()
    for step, validation in enumerate(validations):
        best = best.after(step, validation)
        steps.append(best.step)
    return steps


def test_a_higher_success_is_best() -> None:
    assert _best(_first(1), _first(2), _first(30)) == [0, 1, 2]


def test_a_newer_one_that_may_be_as_good_is_best() -> None:
    assert _best(_first(50), _first(48)) == [0, 1]


def test_one_that_is_shown_to_be_worse_is_not() -> None:
    assert _best(_first(50), _first(30)) == [0, 0]


def test_small_losses_do_not_add_up() -> None:
    """Each is compared with the highest, not with the best before it."""
    assert _best(*map(_first, (50, 47, 44, 41, 38))) == [0, 1, 1, 1, 1]


def test_scenarios_are_compared_in_pairs() -> None:
    """Different scenarios can be right in both, so that the same loss is not shown."""
    before, after = [1.0, 1.0, 0.0] * 20, [0.0, 1.0, 1.0] * 20
    assert _best(_validation(before), _validation([*after[:-1], 0.0])) == [0, 1]


@pytest.mark.parametrize("rates", [{}, {"other": 1.0}])
def test_without_scenarios_to_compare_the_figures_decide(rates: dict[str, float]) -> None:
    validations = [Validation(0.5, 0.5), Validation(0.4, 0.9, rates), Validation(0.5, 0.5), Validation(0.5, 0.6)]
    assert _best(*validations) == [0, 0, 0, 3]


def test_of_few_scenarios_the_figures_decide() -> None:
    assert _best(_first(4, of=4), _first(3, of=4), _first(4, of=4)) == [0, 0, 0]
    assert _best(_first(5, of=5), _first(4, of=5)) == [0, 1]


_RUNS = st.lists(st.lists(st.sampled_from((0.0, 0.5, 1.0)), min_size=8, max_size=8).map(_validation), max_size=8)


@settings(deadline=None, max_examples=20)  # each comparison takes milliseconds
@given(_RUNS)
def test_it_is_the_newest_of_all_that_may_equal_the_highest(validations: list[Validation]) -> None:
    for last in range(1, len(validations) + 1):
        earlier = validations[:last]
        highest = max(earlier, key=lambda validation: (validation.success, validation.mean_reward))
        since = earlier.index(highest)
        equal = [step for step in range(since + 1, last) if earlier[step].may_equal(highest)]
        assert _best(*earlier)[-1] == max([since, *equal])


@settings(deadline=None, max_examples=20)  # each comparison takes milliseconds
@given(_RUNS, st.integers(0, 8))
def test_a_resumed_run_chooses_the_same(validations: list[Validation], cut: int) -> None:
    best = BestCheckpoint()
    for step, validation in enumerate(validations[:cut]):
        best = best.after(step, validation)
    highest = max(validations[:cut], key=lambda validation: (validation.success, validation.mean_reward), default=None)
    assert best.highest == highest
    resumed = BestCheckpoint(best.step, highest)
    for step, validation in enumerate(validations[cut:], cut):
        best, resumed = best.after(step, validation), resumed.after(step, validation)
    assert resumed == best


def test_the_highest_stays_the_best_if_that_is_asked_for() -> None:
    best = BestCheckpoint()
    for step, validation in enumerate((_first(50), _first(52), _first(51), _first(52))):
        best = best.after(step, validation, "highest")
    assert best.step == 1


def test_a_baseline_that_ended_early_is_compared_on_its_scenarios() -> None:
    def of(right: Sequence[float]) -> Validation:
        return replace(_validation(right), scenarios=len(right))

    early = of([1.0] * 31 + [0.0])
    same, worse = of([1.0] * 31 + [0.0] + [0.0] * 32), of([1.0] * 24 + [0.0] * 8 + [1.0] * 1_000)
    assert not same.is_higher_than(early)
    assert not early.is_higher_than(same)
    assert early.is_higher_than(worse), "although the success of all its scenarios is higher"
