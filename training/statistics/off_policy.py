"""What a checkpoint would have earned with answers that another one gave: doubly robust (Dudik et al. 2011), with the
effective sample size of the importance weights (Kong 1992)."""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

LEAST_EFFECTIVE = 0.5
"""Share of the answers below which weights say too little: a few answers would decide."""
LEAST_SHOWN = 100
"""Number of answers below which no interval holds."""
_HIGHEST_WEIGHT = math.log(10)
_MARGIN = NormalDist().inv_cdf(0.95)
"""Standard errors on each side of a 90% interval."""


class ScoredAnswer(NamedTuple):
    """An answer that was not trained on. `log_ratio` is the sum over its tokens of the new log-probabilities minus the
    recorded ones; `outcome` and `forecast` are in [0, 1]."""

    log_ratio: float
    outcome: float
    forecast: float


def effective_share(log_ratios: Sequence[float]) -> float:
    """Return the effective sample size of the weights exp(log_ratio) as a share of their number; 0 without any."""
    weights = [math.exp(log_ratio - max(log_ratios)) for log_ratio in log_ratios]
    return math.fsum(weights) ** 2 / (len(weights) * math.fsum(weight**2 for weight in weights)) if weights else 0.0


def gain(answers: Sequence[ScoredAnswer]) -> tuple[float, float, float] | None:
    """Return by how much the new checkpoint is estimated to raise the mean outcome, and both ends of the 90% interval;
    None if these answers cannot show it."""
    if len(answers) < LEAST_SHOWN or effective_share([answer.log_ratio for answer in answers]) < LEAST_EFFECTIVE:
        return None
    terms = [
        math.expm1(min(answer.log_ratio, _HIGHEST_WEIGHT)) * (answer.outcome - answer.forecast) for answer in answers
    ]
    estimate, margin = fmean(terms), _MARGIN * stdev(terms) / math.sqrt(len(terms))
    return estimate, estimate - margin, estimate + margin
