"""A sequential test of how much a candidate changes a value, compared with the other traffic of the same time.

Each unit (a user or a session) met the candidate (a = 1) with the probability p, or else the stable arm (a = 0), and
has a value y in [0, 1]: one of a guardrail, of which more is worse, or an outcome, of which more is better. For a
forecast m that was made before the unit met its arm,

    z = (y - m) (a - p) - d (a - p)^2

has the mean p (1 - p) (effect - d), where the effect is the expected value with the candidate less that with the stable
arm. It rests on nothing but the coin, so it holds whatever else changes meanwhile. A bet on z above 0 is evidence of an
effect above d, a bet on z below 0 of one below d; both can be looked at after every unit. (Waudby-Smith and Ramdas,
*Estimating Means of Bounded Random Variables by Betting*, Journal of the Royal Statistical Society B, 2024.)

The evidence is a fold over the numbers of units by probability, arm, value and forecast. Sums are exact, so it does not
depend on the order of the cells.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, log, log1p, sqrt

from learnloop_service.training.statistics.betting import BETS, log_mean
from learnloop_service.training.statistics.shares import Z

_HALVINGS = 14
"""Number of times that the range of possible effects is halved to find an end of the interval."""
_LEAST_ESTIMATED = 30


@dataclass(frozen=True, slots=True)
class Cell:
    """Units that are alike to the test."""

    probability: float
    """Probability, in (0, 1), that such a unit met the candidate."""
    candidate: bool
    """Whether it did."""
    value: float
    """In [0, 1]."""
    forecast: float | None = None
    """What was expected of such a unit, in [0, 1]. None stands for the forecast that the test assumes of all units."""


Counts = Mapping[Cell, int]
"""Numbers of units by cell."""


@dataclass(frozen=True, slots=True)
class ArmMean:
    """The units of one arm and their mean value, None without units."""

    units: int
    mean: float | None


@dataclass(frozen=True, slots=True)
class EffectEstimate:
    """An effect with its ordinary 95% interval, which holds for one look that the units had no part in choosing."""

    units: int
    effect: float
    low: float
    high: float


def above(counts: Mapping[Cell, float], effect: float, forecast: float) -> float:
    """Return the logarithm of the evidence that the candidate's effect is above `effect`, which is within (-1, 1)."""
    return _log_wealth(counts, effect, forecast, 1)


def below(counts: Mapping[Cell, float], effect: float, forecast: float) -> float:
    """Return the logarithm of the evidence that the candidate's effect is below `effect`, which is within (-1, 1)."""
    return _log_wealth(counts, effect, forecast, -1)


def effect_interval(counts: Mapping[Cell, float], forecast: float, error: float) -> tuple[float, float]:
    """Return the effects that neither bet rejects, each with half of the error. With a probability of
    1 - `error` they contain the true effect at all looks."""
    needed = -log(error / 2)
    low, _ = _bracket(lambda effect: above(counts, effect, forecast) < needed)
    _, high = _bracket(lambda effect: below(counts, effect, forecast) >= needed)
    return low, high


def effect_estimate(counts: Counts, forecast: float) -> EffectEstimate:
    """Return the mean effect, without bias. Of fewer than 30 units the interval is everything."""
    units = sum(counts.values())
    effects = [(_effect(cell, forecast), count) for cell, count in counts.items()]
    mean = fsum(effect * count for effect, count in effects) / max(1, units)
    if units < _LEAST_ESTIMATED:
        return EffectEstimate(units, mean, -1.0, 1.0)
    margin = Z * sqrt(fsum((effect - mean) ** 2 * count for effect, count in effects)) / units
    return EffectEstimate(units, mean, mean - margin, mean + margin)


def users_needed(variance: float, effect: float) -> float:
    """Return about how many units, half of them in each arm, show an effect at an error of 1/40 in most cases. In
    simulation half of the cases take 23% fewer (benchmarks/releases/outcomes.py).

    `variance` is what the forecast leaves of the outcome's variance. The wealth of the best bet grows by
    `effect`^2 / (8 `variance`) with each unit; two more are the price of a bet that does not know the effect.
    """
    return 8 * variance * (log(40) + 2) / effect**2


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


def _bracket(holds: Callable[[float], bool]) -> tuple[float, float]:
    """Return, by bisection, the last effect in [-1, 1] for which the condition does not hold, and the first one for
    which it does, 0.00012 apart. An end of the range stands for the one that does not exist."""
    low, high = -1.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


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
    forecast = forecast if cell.forecast is None else cell.forecast
    most = max(
        -sign * _z(cell.probability, candidate, value, effect, forecast)
        for candidate in (False, True)
        for value in (0.0, 1.0)
    )
    return sign * _z(cell.probability, cell.candidate, cell.value, effect, forecast) / most


def _effect(cell: Cell, forecast: float) -> float:
    expected = forecast if cell.forecast is None else cell.forecast
    return _z(cell.probability, cell.candidate, cell.value, 0.0, expected) / (cell.probability * (1 - cell.probability))


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
