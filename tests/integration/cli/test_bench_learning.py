"""How the benchmark of learning sums up the documents of demos."""

from typing import Any

import pytest

from benchmarks.learning.learning import summary


def _document(environment: str, seed: int, sampled: float) -> dict[str, Any]:
    pair = {"before": 0.25, "after": 0.25 + sampled}
    return {
        "environment": environment,
        "seed": seed,
        "held_out": {"sampled": pair, "greedy": {"before": 0.5, "after": 0.5}},
        "mean_reward": pair,
        "malformed": pair,
        "seconds": 20.0,
        "tokens_per_s": 600.0,
    }


@pytest.mark.parametrize(("rises", "reached"), [((0.125, 0.375), True), ((0.125, 0.25), False)])
def test_the_goal_of_the_sales_agent_is_for_sampled_success(rises: tuple[float, float], reached: bool) -> None:
    documents = [_document("sales_email", seed, rise) for seed, rise in enumerate(rises)]
    figures = summary(documents)
    assert figures["seeds"] == [0, 1]
    assert figures["sampled"]["rises"] == list(rises)
    assert (figures["sampled"]["goal"], figures["sampled"]["reached"]) == (0.25, reached)
    assert "greedy" not in figures


def test_the_email_agent_has_a_goal_for_both_modes() -> None:
    figures = summary([_document("email_search", 0, 0.5)])
    assert [figures[mode]["reached"] for mode in ("sampled", "greedy")] == [True, False]
    assert figures["sampled"]["spread"] == 0.0
