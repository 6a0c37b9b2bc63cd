"""Confidence intervals by the bootstrap over scenarios, with the same draws for all models.

Scenarios are drawn with replacement. Each draw gives every model's mean, and thus the differences between models on the
same scenarios (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13: percentile intervals; Koehn,
*Statistical Significance Tests for Machine Translation Evaluation*, 2004: the paired bootstrap).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from statistics import fmean

DRAWS = 2_000
LEVEL = 0.95
_KEPT_DRAWS = 16
"""How many counts of scenarios have their draws cached, because drawing takes longer than using them. The draws of a
count take 8 kB for each scenario."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its confidence interval at LEVEL."""

    mean: float
    low: float
    high: float


def intervals(values: Sequence[Sequence[float]], seed: int = 0) -> tuple[list[Interval], list[Interval]]:
    """Return the interval of each model's mean, and of its difference from the first model's mean.

    `values` has one sequence per model: its figures, one per scenario, in the same order for all models. The same seed
    gives the same intervals.
    """
    count = len(values[0])
    draws = _draws(count, seed)
    means = [[sum(map(of_model.__getitem__, drawn)) / count for drawn in draws] for of_model in values]
    averages = [fmean(of_model) for of_model in values]
    differences = [[mean - first for mean, first in zip(of_model, means[0], strict=True)] for of_model in means]
    return (
        [_interval(average, drawn) for average, drawn in zip(averages, means, strict=True)],
        [_interval(average - averages[0], drawn) for average, drawn in zip(averages, differences, strict=True)],
    )


@lru_cache(_KEPT_DRAWS)
def _draws(count: int, seed: int) -> tuple["array[int]", ...]:
    """Return DRAWS times the numbers of `count` scenarios, drawn with replacement."""
    draw = Random(seed)
    return tuple(array("I", draw.choices(range(count), k=count)) for _ in range(DRAWS))


def _interval(mean: float, drawn: list[float]) -> Interval:
    ordered, outside = sorted(drawn), (1 - LEVEL) / 2
    last = len(ordered) - 1
    return Interval(mean, ordered[round(outside * last)], ordered[round((1 - outside) * last)])
