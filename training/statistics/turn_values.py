"""Which turn decided a rollout, from continuations that were sampled before some of its turns.

The value of a turn is the share of successes among the continuations from the state before it. The value after the last
turn is the rollout's own result. A turn's credit is the value after it minus the value before it, as VinePPO computes
it for steps of reasoning (Kazemnejad et al., *VinePPO*, 2024, arXiv 2410.01679). A turn is called decisive only if the
interval of its credit excludes 0 at a level that allows for having looked at all turns (Bonferroni), and if it makes at
least half of the way from the first value to the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log2

from learnloop_service.environment.wording import counted
from learnloop_service.training.statistics.shares import newcombe, wilson, z_of

LEVEL = 0.99
"""Level of the decision for all turns together. It is stricter than usual because the turn is picked and tested by the
same continuations."""
_SHOWN_LEVEL = 0.95
_MOST_SAMPLES = 1_000


@dataclass(frozen=True, slots=True)
class Sampled:
    """Continuations from the state before a turn."""

    count: int
    successes: int

    @property
    def share(self) -> float:
        """The value: their share of successes."""
        return self.successes / self.count


@dataclass(frozen=True, slots=True)
class Credit:
    """How much a turn changed the chance of success."""

    turn: int
    points: float
    """The value after the turn minus the value before it, from -1 to 1."""
    low: float
    """Lower end of its interval."""
    high: float
    """Upper end of its interval."""


@dataclass(frozen=True, slots=True)
class TurnVerdict:
    """What is known of the turn that decided a rollout."""

    decisive: Credit | None
    """The decisive turn; None while it is undecided."""
    closest: Credit | None
    """The turn with the largest change towards the result so far; None without two neighbouring values."""
    missing: int | None
    """How many more continuations before each of its two states would decide it if the values stayed as they are; None
    if it is decided, or if no number would."""

    def missing_before(self, turns: int) -> list[int]:
        """Return the turns that `missing` more continuations are needed before: the closest one and, unless it is the
        last of `turns`, the next one."""
        if self.missing is None or self.closest is None:
            return []
        return [turn for turn in (self.closest.turn, self.closest.turn + 1) if turn <= turns]


def most_probes(turns: int) -> int:
    """Return the most turns that bisection samples continuations before, for a rollout of `turns` turns."""
    return 1 + ceil(log2(turns)) if turns > 1 else 1


def next_probe(values: Mapping[int, Sampled], turns: int, success: bool) -> int | None:
    """Return the next turn to sample continuations before, to find the decisive turn by bisection; None at the end.

    It depends only on the values so far, so that a worker that takes over continues in the same way.
    """
    if 1 not in values:
        return 1
    low, high = _bracket(values, turns, success)
    return (low + high) // 2 if high - low > 1 else None


def credits(values: Mapping[int, Sampled], turns: int, success: bool, level: float = _SHOWN_LEVEL) -> list[Credit]:
    """Return the credits of the turns whose values before and after them are known, in order. Each has an interval of
    that `level`."""
    z, of_turns = z_of(level), []
    for turn in sorted(values):
        if turn != turns and turn + 1 not in values:
            continue
        before = values[turn]
        low, high = wilson(before.share, before.count, z)
        if turn == turns:  # the result itself has no uncertainty
            after = after_low = after_high = float(success)
        else:
            after = values[turn + 1].share
            after_low, after_high = wilson(after, values[turn + 1].count, z)
        interval = newcombe(before.share, low, high, after, after_low, after_high)
        of_turns.append(Credit(turn, after - before.share, *interval))
    return of_turns


def verdict(values: Mapping[int, Sampled], turns: int, success: bool) -> TurnVerdict:
    """Return which turn was decisive according to the values, or how close they are to a decision."""
    if 1 not in values:
        return TurnVerdict(None, None, None)
    way = float(success) - values[1].share
    towards_result = [credit for credit in _for_all_turns(values, turns, success) if credit.points * way > 0]
    if not towards_result:
        return TurnVerdict(None, None, None)
    closest = max(towards_result, key=lambda credit: abs(credit.points))
    if abs(closest.points) < abs(way) / 2:
        return TurnVerdict(None, closest, None)
    if _excludes_zero(closest):
        return TurnVerdict(closest, closest, None)
    return TurnVerdict(None, closest, _missing(values, turns, success, closest.turn))


def sentence(verdict: TurnVerdict, values: Mapping[int, Sampled], turns: int, success: bool | None) -> str:
    """Say in words what is known of the turn that decided a rollout."""
    if success is None:
        return "Whether the rollout succeeded is not known, so no turn can have decided it."
    if 1 not in values:
        return "Undecided: nothing was continued from before the first turn."
    first, result = values[1], "success" if success else "failure"
    if verdict.decisive is not None:
        before, after = (
            values[verdict.decisive.turn].share,
            values[verdict.decisive.turn].share + verdict.decisive.points,
        )
        return (
            f"Turn {verdict.decisive.turn} decided it: the chance of success went from {before:.0%} before it to "
            f"{after:.0%} after it."
        )
    if first.share == float(success):
        return f"No turn decided it: {_all(first.count)} from the beginning ended in {result} as well."
    if verdict.closest is None:
        return "Undecided: no two neighbouring turns were continued from."
    if verdict.missing is not None:
        more = counted(verdict.missing, "more continuation")
        return f"Undecided: turn {verdict.closest.turn} changed most, and {more} would tell."
    return "Undecided: no turn makes half of the way to the result."


def _all(count: int) -> str:
    return "the only continuation" if count == 1 else f"all {count} continuations"


def _bracket(values: Mapping[int, Sampled], turns: int, success: bool) -> tuple[int, int]:
    """Return the states, from 1 to `turns` + 1, between which the value goes from near the first to near the result."""
    low, high, first = 1, turns + 1, values[1].share
    if first == float(success):
        return low, low
    while high - low > 1 and (middle := (low + high) // 2) in values:
        value = values[middle].share
        low, high = (middle, high) if abs(value - first) < abs(value - float(success)) else (low, middle)
    return low, high


def _for_all_turns(values: Mapping[int, Sampled], turns: int, success: bool) -> list[Credit]:
    return credits(values, turns, success, 1 - (1 - LEVEL) / turns)


def _excludes_zero(credit: Credit) -> bool:
    return credit.low > 0 or credit.high < 0


def _missing(values: Mapping[int, Sampled], turns: int, success: bool, turn: int) -> int | None:
    """Return how many more continuations, with the same shares, make the turn's interval exclude 0."""
    states = [state for state in (turn, turn + 1) if state in values]
    now = min(values[state].count for state in states)
    for count in range(now + 1, _MOST_SAMPLES + 1):
        enlarged = {state: Sampled(count, round(values[state].share * count)) for state in states}
        if any(credit.turn == turn and _excludes_zero(credit) for credit in _for_all_turns(enlarged, turns, success)):
            return count - now
    return None
