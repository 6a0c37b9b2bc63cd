"""A run's budget: what it may spend, what it has spent, and whether the next call still fits. No SQL.

A run's meter lives on the run's own event loop for as long as one worker drives it. What it counted is saved with each
iteration and when the work ends (app/runs/ledger.py); the next worker's meter begins with that.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from training.budget import BudgetReached, Phase, Usage

Clock = Callable[[], float]
"""Seconds that only grow."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend at most; None is no limit."""

    max_usd: float | None = None
    max_minutes: float | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> "Budget":
        """The budget in a stored request."""
        return cls(**(request.get("budget") or {}))


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has spent, wasted work included. Prices count where they are known."""

    usd: float = 0.0
    minutes: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """The limit (`max_tokens`, ...) that does not let the next call begin: `needs` is what it would have to be."""

    limit: str
    max: float
    needs: float
    spent: Spent

    def __str__(self) -> str:
        unit = self.limit.removeprefix("max_")
        used = getattr(self.spent, unit)
        return (
            f"the budget of {self.max:.6g} {unit} is reached: {used:.6g} are spent, and what comes next may take it to "
            f"{self.needs:.6g}; resume the run with a higher {self.limit}"
        )

    def figures(self) -> dict[str, Any]:
        """As the event log tells it."""
        return asdict(self)


class RunBudgetReached(BudgetReached):
    """With what is short."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(str(shortage))
        self.shortage = shortage


@dataclass(frozen=True, slots=True)
class Past:
    """What a run spent before a worker took it. `unfinished` is of the iteration under way, and not in `usage`."""

    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    iteration: int = 0
    unfinished: Mapping[Phase, Usage] = field(default_factory=dict)
    prompt_per_turn: float | None = None
    judging: Usage | None = None


class Meter:
    """Counts what a run spends, and lets no call begin that does not fit its budget (training.budget.Allowance)."""

    def __init__(self, budget: Budget, past: Past, clock: Clock = time.monotonic) -> None:
        self.prompt_per_turn, self.judging = past.prompt_per_turn, past.judging
        self.iteration = past.iteration
        self.lost: dict[Phase, Usage] = {}
        """Of work of the iteration under way that is done again."""
        self._budget = budget
        self._clock = clock
        self._settled_at = clock()
        self._seconds = past.seconds
        self._before = past.usage
        self._now = dict(past.unfinished)
        self._open: list[Held] = []
        self._changed = asyncio.Event()

    @property
    def now(self) -> Mapping[Phase, Usage]:
        """What the iteration under way took, without what was lost."""
        return self._now

    @property
    def spent(self) -> Spent:
        """All of the run so far."""
        usage = sum((*self._now.values(), *self.lost.values()), self._before)
        return Spent(usage.usd or 0.0, (self._seconds + self.unsettled_s()) / 60, usage.tokens)

    def unsettled_s(self) -> float:
        """How long the run was driven since that was last saved."""
        return self._clock() - self._settled_at

    def settled(self, seconds: float, *, whole: bool) -> None:
        """So many seconds of driving were saved, and with them what was lost; `whole`: the iteration too."""
        self._seconds += seconds
        self._settled_at += seconds
        self._before = sum(self.lost.values(), self._before)
        self.lost = {}
        if whole:
            self._advance(self.iteration + 1)

    def _advance(self, iteration: int) -> None:
        self._before = sum(self._now.values(), self._before)
        self.iteration, self._now = iteration, {}

    def begin(self, iteration: int, kept: Mapping[Phase, Usage]) -> None:
        if iteration != self.iteration:
            self._advance(iteration)
        self.keep(kept)

    def keep(self, kept: Mapping[Phase, Usage]) -> None:
        """Of what the iteration under way took nothing is left but this: the rest led to nothing."""
        for phase, used in self._now.items():
            lost = _without(used, kept.get(phase, Usage()))
            if lost.tokens or lost.usd:
                self.lost[phase] = self.lost.get(phase, Usage()) + lost
        self._now = dict(kept)

    @asynccontextmanager
    async def reserved(self, phase: Phase, most: Callable[[], Usage | None]) -> AsyncIterator["Held"]:
        held = Held(self, phase, await self._admit(most))
        self._open.append(held)
        try:
            yield held
        finally:
            self._open.remove(held)
            self._change()

    async def _admit(self, most: Callable[[], Usage | None]) -> Usage:
        """What is held back for a call, once it fits."""
        if not self.limited:
            return Usage()
        while True:
            needed = most()
            alone = needed is None and bool(self._open)
            shortage = self._shortage(needed)
            if shortage is None and not alone:
                return needed or Usage()
            if shortage is not None and not self._open:
                raise RunBudgetReached(shortage)
            await self._changed.wait()

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return self._budget != Budget()

    async def extend(self, held: "Held", most: Callable[[], Usage]) -> None:
        """Hold more back for a call under way, once it fits."""
        while (more := _without(most(), held.left)).tokens:
            shortage = self._shortage(more)
            if shortage is None:
                held.left += more
                return
            if all(other.waits for other in self._open if other is not held):
                raise RunBudgetReached(shortage)
            held.waits = True
            try:
                await self._changed.wait()
            finally:
                held.waits = False

    def spend(self, phase: Phase, used: Usage) -> None:
        """So much was used."""
        self._now[phase] = self._now.get(phase, Usage()) + used

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _shortage(self, needed: Usage | None) -> Shortage | None:
        spent, more = self.spent, sum((held.left for held in self._open), needed or Usage())
        after = {
            "usd": spent.usd + (more.usd or 0.0),
            "minutes": spent.minutes,
            "tokens": spent.tokens + more.tokens,
        }
        for unit, needs in after.items():
            most = getattr(self._budget, f"max_{unit}")
            # What nobody can tell beforehand begins while anything is left.
            untold = needed is None or unit == "minutes"
            if most is not None and (needs > most or (untold and needs >= most)):
                return Shortage(f"max_{unit}", most, needs, spent)
        return None


@dataclass(eq=False)
class Held:
    """What is held back for one call (training.budget.Reservation)."""

    meter: Meter
    phase: Phase
    left: Usage
    """Of what was held back, without what was used."""
    waits: bool = False
    """It needs more, and there is none."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        if self.meter.limited:
            await self.meter.extend(self, most)

    def spend(self, used: Usage) -> None:
        self.left = _without(self.left, used)
        self.meter.spend(self.phase, used)


_NOTHING_USD = 1e-9


def _without(all_of_it: Usage, part: Usage) -> Usage:
    usd = None if all_of_it.usd is None else max(0.0, all_of_it.usd - (part.usd or 0.0))
    if usd is not None and usd < _NOTHING_USD:  # what the order of a sum leaves
        usd = 0.0
    return Usage(
        max(0, all_of_it.prompt_tokens - part.prompt_tokens),
        max(0, all_of_it.completion_tokens - part.completion_tokens),
        usd,
    )
