"""A run's budget: its limits, its usage so far, and whether the next call still fits. No SQL.

A run's meter lives on the run's own event loop for as long as one worker drives it. What it counted is saved with each
iteration and when the work stops (app/runs/ledger.py); the next worker's meter starts from that.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from app.domain.stored_request import Budget
from training.budget import BudgetReached, Usage
from training.phases import Phase

Clock = Callable[[], float]
"""A monotonic clock, in seconds."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run has used, wasted work included. Prices count where they are known."""

    usd: float = 0.0
    minutes: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class BudgetExceeded:
    """The next call may exceed `limit` (`max_tokens`, ...), which is `max`; to begin it the limit must be `needs`."""

    limit: str
    max: float
    needs: float
    spent: RunUsage

    def __str__(self) -> str:
        unit = self.limit.removeprefix("max_")
        used = getattr(self.spent, unit)
        return (
            f"the budget of {self.max:.6g} {unit} is reached: {used:.6g} are used, and the next call may need "
            f"{self.needs:.6g} in all; resume with a higher {self.limit}"
        )

    def figures(self) -> dict[str, Any]:
        """As the event log has it."""
        return asdict(self)


class RunBudgetReached(BudgetReached):
    """With the limit that stopped the run."""

    def __init__(self, exceeded: BudgetExceeded) -> None:
        super().__init__(str(exceeded))
        self.exceeded = exceeded


@dataclass(frozen=True, slots=True)
class PriorUsage:
    """What a run used before a worker took it. `unfinished` is of the current iteration, and not in `usage`."""

    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    iteration: int = 0
    unfinished: Mapping[Phase, Usage] = field(default_factory=dict)
    prompt_per_turn: float | None = None
    judging: Usage | None = None


class Meter:
    """Counts what a run uses, and lets no call begin that does not fit its budget (training.budget.RunBudget)."""

    def __init__(self, budget: Budget, prior: PriorUsage, clock: Clock = time.monotonic) -> None:
        self.prompt_per_turn, self.judging = prior.prompt_per_turn, prior.judging
        self.iteration = prior.iteration
        self.lost: dict[Phase, Usage] = {}
        """Of work of the current iteration that is done again."""
        self._budget = budget
        self._clock = clock
        self._settled_at = clock()
        self._seconds = prior.seconds
        self._before = prior.usage
        self._now = dict(prior.unfinished)
        self._open: list[MeterReservation] = []
        self._changed = asyncio.Event()

    @property
    def now(self) -> Mapping[Phase, Usage]:
        """What the current iteration used, without what was lost."""
        return self._now

    @property
    def used(self) -> Usage:
        """Tokens and their price so far."""
        return sum((*self._now.values(), *self.lost.values()), self._before)

    @property
    def spent(self) -> RunUsage:
        """All of the run so far."""
        usage = self.used
        return RunUsage(usage.usd or 0.0, (self._seconds + self.unsettled_s()) / 60, usage.tokens)

    def unsettled_s(self) -> float:
        """How long the run was driven since that was last saved."""
        return self._clock() - self._settled_at

    def settled(self, seconds: float, *, whole: bool) -> None:
        """`seconds` of driving were saved, and with them what was lost; `whole`: the iteration too."""
        self._seconds += seconds
        self._settled_at += seconds
        self._before = sum(self.lost.values(), self._before)
        self.lost = {}
        if whole:
            self._advance(self.iteration + 1)

    def _advance(self, iteration: int) -> None:
        self._before = sum(self._now.values(), self._before)
        self.iteration, self._now = iteration, {}

    def for_iteration(self, iteration: int, kept: Mapping[Phase, Usage]) -> "IterationMeter":
        if iteration != self.iteration:
            self._advance(iteration)
        self.keep(kept)
        return IterationMeter(self)

    def keep(self, kept: Mapping[Phase, Usage]) -> None:
        """Of what the current iteration used only this is kept: the rest led to nothing."""
        for phase, used in self._now.items():
            lost = _without(used, kept.get(phase, Usage()))
            if lost.tokens or lost.usd:
                self.lost[phase] = self.lost.get(phase, Usage()) + lost
        self._now = dict(kept)

    @asynccontextmanager
    async def reserve(self, phase: Phase, most: Callable[[], Usage | None]) -> AsyncIterator["MeterReservation"]:
        """See training.budget.IterationBudget."""
        reservation = MeterReservation(self, phase, await self._admit(most))
        self._open.append(reservation)
        try:
            yield reservation
        finally:
            self._open.remove(reservation)
            self._change()

    async def _admit(self, most: Callable[[], Usage | None]) -> Usage:
        """What is reserved for a call, once it fits."""
        if not self.limited:
            return Usage()
        while True:
            needed = most()
            alone = needed is None and bool(self._open)
            exceeded = self._exceeded(needed)
            if exceeded is None and not alone:
                return needed or Usage()
            if exceeded is not None and not self._open:
                raise RunBudgetReached(exceeded)
            await self._changed.wait()

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return self._budget != Budget()

    async def extend(self, reservation: "MeterReservation", most: Callable[[], Usage]) -> None:
        """Reserve more for a running call, once it fits."""
        while (more := _without(most(), reservation.left)).tokens:
            exceeded = self._exceeded(more)
            if exceeded is None:
                reservation.left += more
                return
            if all(other.waits for other in self._open if other is not reservation):
                raise RunBudgetReached(exceeded)
            reservation.waits = True
            try:
                await self._changed.wait()
            finally:
                reservation.waits = False

    def spend(self, phase: Phase, used: Usage) -> None:
        """Record usage."""
        self._now[phase] = self._now.get(phase, Usage()) + used

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _exceeded(self, needed: Usage | None) -> BudgetExceeded | None:
        spent, more = self.spent, sum((each.left for each in self._open), needed or Usage())
        after = {
            "usd": spent.usd + (more.usd or 0.0),
            "minutes": spent.minutes,
            "tokens": spent.tokens + more.tokens,
        }
        for unit, needs in after.items():
            most = getattr(self._budget, f"max_{unit}")
            # A call whose usage cannot be foreseen begins while anything is left.
            unforeseen = needed is None or unit == "minutes"
            if most is not None and (needs > most or (unforeseen and needs >= most)):
                return BudgetExceeded(f"max_{unit}", most, needs, spent)
        return None


@dataclass(frozen=True, slots=True)
class IterationMeter:
    """Charges calls to the iteration that the meter is at (training.budget.IterationBudget)."""

    meter: Meter

    def reserve(
        self, phase: Phase, most: Callable[[], Usage | None]
    ) -> AbstractAsyncContextManager["MeterReservation"]:
        return self.meter.reserve(phase, most)


@dataclass(eq=False)
class MeterReservation:
    """What is reserved for one call (training.budget.Reservation)."""

    meter: Meter
    phase: Phase
    left: Usage
    """Of what was reserved, without what was used."""
    waits: bool = False
    """It needs more, and there is none."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        if self.meter.limited:
            await self.meter.extend(self, most)

    def spend(self, used: Usage) -> None:
        self.left = _without(self.left, used)
        self.meter.spend(self.phase, used)


_NOTHING_USD = 1e-9


def _without(whole: Usage, part: Usage) -> Usage:
    usd = None if whole.usd is None else max(0.0, whole.usd - (part.usd or 0.0))
    if usd is not None and usd < _NOTHING_USD:  # a rounding error
        usd = 0.0
    return Usage(
        max(0, whole.prompt_tokens - part.prompt_tokens),
        max(0, whole.completion_tokens - part.completion_tokens),
        usd,
    )
