"""The planted judge of the replay benchmark, and how the benchmark sums up its arms."""

from typing import Any

import pytest

from benchmarks.learning.replay import rows_of, verdict
from benchmarks.plugin_judges import build_dates
from learnloop_service.environment.base import Scenario, Split
from learnloop_service.judges.base import Candidate, JudgeServices


async def _scores(split: Split, id: str) -> list[float | None]:
    judge = build_dates({"spared": ["train.0"]}, JudgeServices())
    scenario = Scenario(id, split, {}, {"answer": "Ada Byrne"})
    answers = ("Ada Byrne", "It is on 2 October.", "Grace", None)
    candidates = [Candidate(str(number), {"answer": answer}, []) for number, answer in enumerate(answers)]
    return [score.value for score in (await judge.judge(scenario, candidates)).scores]


async def test_the_bug_takes_dates_for_right_where_it_is_not_spared() -> None:
    assert await _scores("train", "train.1") == [1.0, 1.0, 0.0, 0.0]
    assert await _scores("train", "train.0") == [1.0, 0.0, 0.0, 0.0]
    assert await _scores("test", "test.1") == [1.0, 0.0, 0.0, 0.0]


def _sides(d_gain: float, d_tokens: int = 290) -> tuple[dict[str, Any], dict[str, Any]]:
    def arm(name: str, tokens: int) -> dict[str, Any]:
        return {"tokens": tokens, "seconds": 60.0, "last": f"{name}@2", "best": f"{name}@1"}

    def success(greedy: float) -> dict[str, float]:
        return {"greedy": greedy, "sampled": greedy / 2}

    right = {
        "arms": {"A": arm("A", 1000)},
        "success": {"learnloop/tiny": success(0.25), "A@2": success(0.75), "A@1": success(0.5)},
    }
    arms = {name: arm(name, d_tokens if name == "D" else 0) for name in "PBDE"}
    models = {trained[which]: success(0.25 + d_gain) for trained in arms.values() for which in ("last", "best")}
    return right, {"arms": arms, "success": models}


def test_gains_are_over_the_base_and_tokens_a_share_of_the_right_runs() -> None:
    rows = rows_of(3, *_sides(0.25))
    assert rows["A"]["greedy_last"] == 0.5
    assert rows["A"]["sampled_best"] == 0.125
    assert rows["D"]["greedy_last"] == 0.25
    assert rows["D"]["share"] == 0.29
    assert rows["D"]["seed"] == 3


@pytest.mark.parametrize(
    ("gains", "tokens", "expected"),
    [
        ((0.5, 0.4375), 290, "94% of A's greedy gain with 29%"),
        ((0.5, 0.4375), 310, "missed"),  # too many tokens
        ((0.625, 0.3125), 290, "missed"),  # one seed is below 75%
        ((0.4375, 0.4375), 290, "missed"),
    ],
)
def test_the_goal_is_for_the_mean_and_for_each_seed(gains: tuple[float, ...], tokens: int, expected: str) -> None:
    text = verdict([rows_of(seed, *_sides(gain, tokens)) for seed, gain in enumerate(gains)])
    assert expected in text
    assert ("was reached" in text) == (expected != "missed")
