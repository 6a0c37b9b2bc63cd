"""The verdict on a run, and the difference that it rests on."""

import random
import re
from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learnloop_service.app.cli.held_out import held_out_figures
from learnloop_service.app.statistics.verdict import RunVerdict, VerdictState, verdict
from learnloop_service.training.statistics.difference import SuccessDifference, difference

_SHARES = st.sampled_from((0.0, 0.5, 1.0))
_PAIRS = st.lists(st.tuples(_SHARES, _SHARES), min_size=1, max_size=40)


def _named(values: list[float]) -> dict[str, float]:
    return {f"scenario-{number}": value for number, value in enumerate(values)}


def _evaluation(iteration: int, values: list[float], baseline: list[float] | None = None, **others: Any) -> Any:
    """An evaluation of one scenario per value. Its step is its iteration."""
    change = None if baseline is None else difference(_named(baseline), _named(values))
    return {
        "iteration": iteration,
        "split": "validation",
        "mode": "sampled",
        "step": iteration,
        "scenarios": len(values),
        "success": fmean(values),
        "difference": None if change is None else asdict(change),
    } | others


def _judged(before: list[float], after: list[float], **others: Any) -> RunVerdict:
    return verdict([_evaluation(0, before), _evaluation(4, after, before)], **others)


@given(_PAIRS)
@settings(max_examples=60, deadline=None)
def test_a_state_and_its_figures_never_contradict_each_other(pairs: list[tuple[float, float]]) -> None:
    before, after = ([pair[side] for pair in pairs] for side in (0, 1))
    judged = _judged(before, after)
    assert judged.points is not None
    assert judged.interval is not None
    assert judged.on is not None
    low, high = judged.interval
    assert low - 0.1 <= judged.points <= high + 0.1
    if judged.state is VerdictState.LEARNED:
        assert low > 0
    if judged.state is VerdictState.GOT_WORSE:
        assert high < 0
    if judged.state in (VerdictState.LEARNED, VerdictState.GOT_WORSE):
        assert sum(old != new for old, new in pairs) >= 5
    else:
        smallest = judged.on["smallest_points"]
        assert smallest is None if len(pairs) < 5 else 0 < smallest <= 100
    assert judged.on["first"]["success"] == fmean(before)
    assert judged.on["latest"]["success"] == fmean(after)


@given(_PAIRS)
@settings(max_examples=60, deadline=None)
def test_a_run_backwards_has_the_opposite_verdict(pairs: list[tuple[float, float]]) -> None:
    before, after = ([pair[side] for pair in pairs] for side in (0, 1))
    opposite = {
        VerdictState.LEARNED: VerdictState.GOT_WORSE,
        VerdictState.GOT_WORSE: VerdictState.LEARNED,
        VerdictState.NO_CHANGE_SHOWN: VerdictState.NO_CHANGE_SHOWN,
    }
    forwards, backwards = _judged(before, after), _judged(after, before)
    # An end of the interval that is 0 but for rounding of sums can fall on either side.
    if forwards.interval is not None and all(abs(end) > 0.1 for end in forwards.interval):
        assert backwards.state is opposite[forwards.state]


@given(_PAIRS, st.integers(0, 40), st.integers(0, 40))
@settings(max_examples=40, deadline=None)
def test_the_best_checkpoint_never_changes_the_verdict(
    pairs: list[tuple[float, float]], best: int, between: int
) -> None:
    before, after = ([pair[side] for pair in pairs] for side in (0, 1))
    plain = _judged(before, after)
    perfect = _evaluation(2, [1.0] * len(pairs), before)
    judged = verdict([_evaluation(4, after, before), perfect, _evaluation(0, before)], best_step=best)
    assert judged.state == plain.state
    assert judged.points == plain.points
    assert judged.interval == plain.interval
    assert judged.text.startswith(plain.text)


@pytest.mark.long
def test_chance_seldom_looks_like_learning() -> None:
    """With the same success before and after, about 5% of the verdicts claim a change."""
    draw = random.Random(7)
    for scenarios, samples in ((8, 2), (12, 1), (24, 2)):
        claimed = 0
        for _ in range(200):
            rates = [draw.choice((0.05, 0.3, 0.5, 0.8)) for _ in range(scenarios)]
            before, after = (
                _named([fmean(draw.random() < rate for _ in range(samples)) for rate in rates]) for _ in range(2)
            )
            change = difference(before, after)
            claimed += change is not None and change.is_shown
        assert claimed <= 200 * 0.065, (scenarios, samples)


def test_a_fall_is_named_even_if_the_best_checkpoint_is_untrained() -> None:
    judged = _judged([1.0] * 6 + [0.0] * 18, [0.0] * 24, best_step=0)
    assert judged.state is VerdictState.GOT_WORSE
    assert judged.points == -25
    fell = "Got worse: held-out success fell from 25% to 0%, \u221225 points (95% interval \u2212"
    assert judged.text.startswith(fell)
    assert judged.text.endswith("The best checkpoint is the model before training, with 25%.")


def test_the_sentence_names_split_mode_scenarios_and_iteration() -> None:
    judged = _judged([0.0] * 20 + [1.0] * 4, [1.0] * 20 + [0.0] * 4, causes=("stale_policy",))
    assert judged.state is VerdictState.LEARNED
    assert re.fullmatch(
        r"Learned: held-out success rose from 17% to 83%, \+67 points \(95% interval \+\d\d to \+\d\d; 24 validation "
        r"scenarios, sampled, paired; after iteration 4\)\. Diagnosed: stale_policy\.",
        judged.text,
    )
    assert judged.causes == ("stale_policy",)
    assert judged.sentence == "Learned: held-out success rose from 17% to 83%, +67 points"
    assert re.fullmatch(
        r"95% interval \+\d\d to \+\d\d; 24 validation scenarios, sampled, paired; after iteration 4\. "
        r"Diagnosed: stale policy\.",
        judged.details,
    )


def test_without_a_change_it_names_the_smallest_difference_it_could_show() -> None:
    same = [1.0, 0.0] * 12
    judged = _judged(same, same)
    assert judged.state == VerdictState.NO_CHANGE_SHOWN
    assert judged.points == 0
    assert judged.interval == (0, 0)
    assert judged.text.endswith("The smallest difference that it could have shown is 21 points.")
    assert "50% to 50%, 0 points (95% interval 0 to 0;" in judged.text
    few = _judged([0.0] * 4, [1.0] * 4)
    assert few.state is VerdictState.NO_CHANGE_SHOWN
    assert few.text.endswith("4 scenarios are too few to show any difference.")


def test_few_changed_scenarios_do_not_show_a_difference_and_it_says_why() -> None:
    before, after = [1.0] * 4 + [0.0] * 20, [0.0] * 24
    judged = _judged(before, after)
    assert judged.state is VerdictState.NO_CHANGE_SHOWN
    assert judged.interval is not None
    assert judged.interval[1] < 0
    assert judged.text.endswith("Only 4 of the scenarios changed; 5 are needed to tell it from chance.")
    assert _judged([1.0, *before[:-1]], after).state is VerdictState.GOT_WORSE


@pytest.mark.parametrize(
    ("evaluations", "text"),
    [
        ([], "Too early to say: no held-out scenario has been evaluated."),
        (
            [_evaluation(0, [1.0, 0.0, 0.0, 0.0])],
            "Too early to say: held-out success was 25% before training (4 validation scenarios, sampled), and has not "
            "been evaluated since.",
        ),
        ([_evaluation(0, [1.0], mode="greedy")], "Too early to say: no held-out scenario has been evaluated."),
    ],
)
def test_one_evaluation_is_too_early(evaluations: list[Mapping[str, Any]], text: str) -> None:
    judged = verdict(evaluations)
    assert judged.state == VerdictState.TOO_EARLY
    assert judged.points is None
    assert judged.interval is None
    assert judged.text == text


def test_the_test_split_is_the_headline_only_of_a_run_without_validation() -> None:
    worse, better = [1.0] * 12, [0.0] * 12
    tested = [_evaluation(0, better, split="test"), _evaluation(4, worse, better, split="test")]
    validated = [_evaluation(0, worse), _evaluation(4, better, worse)]
    assert verdict(tested).state is VerdictState.LEARNED
    both = verdict([*tested, *validated])
    assert both.state is VerdictState.GOT_WORSE
    assert both.on is not None
    assert both.on["split"] == "validation"


def test_an_evaluation_of_an_earlier_version_has_no_interval() -> None:
    judged = verdict([_evaluation(0, [0.0] * 8), _evaluation(4, [1.0] * 8)])
    assert judged.state == VerdictState.NO_CHANGE_SHOWN
    assert judged.points == 100
    assert judged.interval is None
    assert "An earlier version" in judged.text


def test_only_shared_scenarios_are_compared() -> None:
    change = difference({"a": 0.0, "b": 1.0}, {"b": 0.5, "c": 1.0})
    assert change == SuccessDifference(1, 1, -0.5, -0.5, -0.5, None)
    assert difference({"a": 0.0}, {"b": 1.0}) is None


@given(st.floats(1e-6, 20), st.floats(1e-6, 20), st.booleans())
def test_a_run_on_demonstrations_is_judged_by_its_losses(first: float, latest: float, held_out: bool) -> None:
    losses = {"first": first, "latest": latest, "held_out": held_out}
    judged = verdict([], causes=["too_hard"], losses=losses)
    assert (judged.state is VerdictState.DEMONSTRATIONS_LEARNED) == (latest < first)
    assert judged.points is None
    assert judged.on is None
    assert judged.losses == losses
    assert judged.text.startswith("Demonstrations learned: " if latest < first else "Demonstrations not learned: ")
    assert ("held-out loss" in judged.text) == held_out
    assert judged.text.endswith(" Diagnosed: too_hard.")


def test_the_sentence_has_both_losses() -> None:
    text = verdict([], losses={"first": 3.31, "latest": 0.402, "held_out": True}).text
    assert text == "Demonstrations learned: held-out loss 3.3 \N{RIGHTWARDS ARROW} 0.4."
    text = verdict([], losses={"first": 0.401, "latest": 0.402, "held_out": True}).text
    assert text == "Demonstrations not learned: held-out loss 0.401 \N{RIGHTWARDS ARROW} 0.402."
    unknown = {"first": None, "latest": 0.4, "held_out": False}  # a single iteration, and nothing held out
    assert verdict([], losses=unknown).state is VerdictState.TOO_EARLY


def test_a_baseline_that_ended_early_is_compared_on_its_scenarios() -> None:
    """The first half of the scenarios has another success than the whole."""
    before, after = [0.0] * 64, [1.0] * 48 + [0.0] * 16 + [1.0] * 64
    rows = [_evaluation(0, before), _evaluation(4, after, before)]
    judged = verdict(rows, best_step=4)
    assert judged.on is not None
    assert judged.on["scenarios"] == 64
    assert judged.on["first"]["success"] == 0.0
    assert judged.on["latest"]["success"] == 0.75
    assert judged.points == 75.0
    assert "from 0% to 75%, +75 points" in judged.text
    assert "64 validation scenarios" in judged.text
    figures = held_out_figures(
        [{**row, "mean_reward": 0.5, "malformed": 0.0, "turns": 2.0} for row in rows], "validation"
    )
    assert figures["held_out"]["sampled"] == {"before": 0.0, "after": 0.75}
    assert figures["held_out"]["scenarios"] == 64
    assert figures["held_out"]["on_all"] == {"scenarios": 128, "sampled": 0.875}
    full = held_out_figures([{**rows[1], "mean_reward": 0.5, "malformed": 0.0, "turns": 2.0}], "validation")
    assert "on_all" not in full["held_out"]
