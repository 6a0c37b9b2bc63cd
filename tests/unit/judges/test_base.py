"""A score is in range, or absent."""

import math

import pytest

from learnloop_service.judges.base import Score


@pytest.mark.parametrize("value", [None, 0.0, 0.5, 1.0])
def test_scores_in_range(value: float | None) -> None:
    assert Score(value, "because").value == value


@pytest.mark.parametrize("value", [-0.001, 1.001, 7.0, math.inf, math.nan])
def test_scores_out_of_range_cannot_be_made(value: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        Score(value, "because")
