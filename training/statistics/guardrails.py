"""A sequential test of whether a candidate is worse than the other traffic of the same time by more than a tolerance.

Each unit (a user or a session) met the candidate (a = 1) with the probability p, or else the stable arm (a = 0), and
has a value y in [0, 1], of which more is worse. For a forecast m that was made before,

    z = (y - m) (a - p) - d (a - p)^2

has the mean p (1 - p) (effect - d), where the effect is the expected value with the candidate less that with the stable
arm. It rests on nothing but the coin, so it holds whatever else changes meanwhile. A bet on z above 0 is evidence of an
effect above d, a bet on z below 0 of one below d; both can be looked at after every unit. (Waudby-Smith and Ramdas,
*Estimating Means of Bounded Random Variables by Betting*, Journal of the Royal Statistical Society B, 2024.)

The evidence is a fold over the numbers of units by probability, arm and value. Sums are exact, so it does not depend on
the order of the cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, log1p

from learnloop_service.training.statistics.betting import BETS, log_mean


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Units that are alike to the test."""

    probability: float
    """Probability, in (0, 1), that such a unit met the candidate."""
    candidate: bool
    """Whether it did."""
    value: float
    """In [0, 1]; more is worse."""


Counts = Mapping[Cell, int]
"""Numbers of units by cell."""


@dataclass(frozen=True, slots=True)
class ArmMean:
    """The units of one arm and their mean value, None without units."""

    units: int
    mean: float | None


def above(counts: Mapping[Cell, float], effect: float, forecast: float) -> float:
    """Return the logarithm of the evidence that the candidate is worse by more than `effect`."""
    return _log_wealth(counts, effect, forecast, 1)


def below(counts: Mapping[Cell, float], effect: float, forecast: float) -> float:
    """Return the logarithm of the evidence that the candidate is worse by less than `effect`, if at all."""
    return _log_wealth(counts, effect, forecast, -1)


def evidence_of_bias(counts: Mapping[Cell, float]) -> float:
    """Return the logarithm of the evidence that units did not meet the candidate with their probability.

    Half of the stake bets that they met it more often, half that they did less often. The values play no part.
    """
    grown = [(_log_growth_of_coin(cell.probability, cell.candidate), count) for cell, count in counts.items()]
    return log_mean([fsum(count * logs[bet] for logs, count in grown) for bet in range(2 * len(BETS))])


def arm_mean(counts: Counts, *, candidate: bool) -> ArmMean:
    """Return how many units one arm has, and their mean."""
    of_arm = [(cell.value, count) for cell, count in counts.items() if cell.candidate is candidate]
    units = sum(count for _, count in of_arm)
    return ArmMean(units, fsum(value * count for value, count in of_arm) / units if units else None)


def expected_counts(probability: float, values: Mapping[float, float], units: float) -> dict[Cell, float]:
    """Return the expected counts of that many units, in both of whose arms the values have those probabilities."""
    return {
        Cell(probability, candidate, value): units * share * rate
        for candidate, share in ((True, probability), (False, 1 - probability))
        for value, rate in values.items()
    }


def _log_wealth(counts: Mapping[Cell, float], effect: float, forecast: float, sign: int) -> float:
    grown = [(_log_growth(cell, effect, forecast, sign), count) for cell, count in counts.items()]
    return log_mean([fsum(count * logs[bet] for logs, count in grown) for bet in range(len(BETS))])


@lru_cache(maxsize=8_192)
def _log_growth(cell: Cell, effect: float, forecast: float, sign: int) -> tuple[float, ...]:
    """Return the logarithm of what a unit multiplies each stake by. Remembered, because every look needs it again."""
    gain = _gain(cell, effect, forecast, sign)
    return tuple(log1p(bet * gain) for bet in BETS)


def _log_growth_of_coin(probability: float, candidate: bool) -> list[float]:
    """Return the logarithm of what a unit multiplies each stake by: those on the candidate, then those on stable."""
    coin = candidate - probability
    gains = (coin / probability, -coin / (1 - probability))
    return [log1p(bet * gain) for gain in gains for bet in BETS]


def _gain(cell: Cell, effect: float, forecast: float, sign: int) -> float:
    """Return what a unit adds to a stake per bet: at least -1, so that no stake can become negative.

    The scale depends only on what was known before the unit was assigned, or the bet would not be fair.
    """
    most = max(
        -sign * _z(cell.probability, candidate, value, effect, forecast)
        for candidate in (False, True)
        for value in (0.0, 1.0)
    )
    return sign * _z(cell.probability, cell.candidate, cell.value, effect, forecast) / most


def _z(probability: float, candidate: bool, value: float, effect: float, forecast: float) -> float:
    coin = candidate - probability
    return (value - forecast) * coin - effect * coin * coin


def merged(*parts: Counts) -> dict[Cell, int]:
    """Return the sums of several counts."""
    sums: dict[Cell, int] = {}
    for part in parts:
        for cell, count in part.items():
            sums[cell] = sums.get(cell, 0) + count
    return sums
