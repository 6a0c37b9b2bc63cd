"""A run's budget: its limits, its usage so far, and whether the next call still fits. Contains no SQL.

A run's meter is used on the run's own event loop for as long as one worker drives it. Its counts are saved with each
iteration and when the work stops (app/runs/ledger.py), and the next worker's meter starts from them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from learnloop_service.app.domain.stored_request import StoredBudget
from learnloop_service.training.budget import BudgetReached, Usage
from learnloop_service.training.phases import Phase

Clock = Callable[[], float]
"""A monotonic clock, in seconds."""
_AGAIN_S = 0.25
"""Time between two looks whether others have freed what a call needs."""
_WHOLE_FROM = 1_000
"""From here on an amount is shown without decimals, and with separators."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run has used, including wasted work. Only known prices count."""

    usd: float = 0.0
    minutes: float = 0.0
    tokens: int = 0


def amount(value: float) -> str:
    """Return an amount of money, minutes or tokens as text, such as `30,000` or `0.25`."""
    return f"{value:,.0f}" if abs(value) >= _WHOLE_FROM else f"{value:.6g}"


@dataclass(frozen=True, slots=True)
class BudgetExceeded:
    """The next call could exceed `limit` (`max_tokens`, ...), which is `max` and would have to be `needs`."""

    limit: str
    max: float
    needs: float
    spent: RunUsage
    whose: str | None = None
    """The project or API key whose budget for a day it is, which is the setting `budget`; None: the work's own."""
    budget: str | None = None
    until: str | None = None
    """When that work is tried again without a change of the limit; None for never."""
    waits: bool = False
    """Whether it may fit once others have used less than they reserved."""

    def __str__(self) -> str:
        unit = self.limit.removeprefix("max_").removesuffix("_at_once")
        used = getattr(self.spent, unit)
        if self.whose is not None:
            when = "Once that is changed" if self.until is None else f"At {self.until}, or once that is changed"
            most = f"{amount(self.max)} {unit} {'at once' if self.limit.endswith('_at_once') else 'a day'}"
            return (
                f"The budget of {self.whose} is {most}: {amount(used)} were used today, and with what is reserved this "
                f"needs {amount(self.needs)}. {when}, it continues by itself."
            )
        return (
            f"The budget of {amount(self.max)} {unit} is reached: {amount(used)} are used, and the next call may need "
            f"{amount(self.needs)} in all. Resume with a higher {self.limit}."
        )

    def figures(self) -> dict[str, Any]:
        """Return the fields as the event log has them."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}


class RunBudgetReached(BudgetReached):
    """Raised when a run reaches its budget. `exceeded` describes the limit that stopped it."""

    def __init__(self, exceeded: BudgetExceeded) -> None:
        super().__init__(str(exceeded))
        self.exceeded = exceeded


@dataclass(frozen=True, slots=True)
class PriorUsage:
    """What a run used before this worker claimed it."""

    usage: Usage = field(default_factory=Usage)
    """Usage that is not in `unfinished`."""
    seconds: float = 0.0
    iteration: int = 0
    """The next iteration to finish."""
    unfinished: Mapping[int, Mapping[Phase, Usage]] = field(default_factory=dict)
    """Usage by iteration: the next one to finish, and later ones whose rollouts ran ahead."""
    prompt_per_turn: float | None = None
    judging: Usage | None = None


class Meter:
    """Counts what a run uses, and admits only calls that fit its budget (learnloop_service.training.budget.RunBudget).

    Not thread-safe: while the learn loop has rollouts in flight, the meter belongs to their thread.
    """

    def __init__(self, budget: StoredBudget, prior: PriorUsage, clock: Clock = time.monotonic) -> None:
        self.prompt_per_turn, self.judging = prior.prompt_per_turn, prior.judging
        self.iteration = prior.iteration
        """The next iteration to finish."""
        self._unfinished = {iteration: dict(used) for iteration, used in prior.unfinished.items()}
        self._lost: dict[int, dict[Phase, Usage]] = {}
        """Usage, by iteration, of lost work that has to be repeated."""
        self.day: Any = None
        """`DaySpending`: the budgets that it has together with other work; None without any."""
        self.total = Usage()
        """What calls have used since this worker claimed the work."""
        self._budget = budget
        self._clock = clock
        self._settled_at = clock()
        self._seconds = prior.seconds
        self._before = prior.usage
        self._reached: BudgetExceeded | None = None
        self._open: list[MeterReservation] = []
        self._changed = asyncio.Event()

    @property
    def unfinished(self) -> Mapping[int, Mapping[Phase, Usage]]:
        """Usage of each unfinished iteration, without what was lost."""
        return self._unfinished

    def lost(self, iteration: int) -> Mapping[Phase, Usage]:
        """Return what the iteration used for lost work since the last save."""
        return self._lost.get(iteration, {})

    @property
    def used(self) -> Usage:
        """Tokens and their price so far."""
        phases = (*self._unfinished.values(), *self._lost.values())
        return sum((used for usages in phases for used in usages.values()), self._before)

    @property
    def spent(self) -> RunUsage:
        """Everything that the run has used so far."""
        usage = self.used
        return RunUsage(usage.usd or 0.0, (self._seconds + self.unsettled_s()) / 60, usage.tokens)

    def unsettled_s(self) -> float:
        """Return how long the run was driven since the last save, in seconds."""
        return self._clock() - self._settled_at

    def settled(self, seconds: float, iteration: int) -> None:
        """Record that `seconds` of driving and a finished iteration were saved."""
        self._seconds += seconds
        self._settled_at += seconds
        for usages in (self._unfinished, self._lost):
            self._before = sum(usages.pop(iteration, {}).values(), self._before)
        self.iteration = iteration + 1

    def for_iteration(self, iteration: int, journaled: Mapping[Phase, Usage]) -> "IterationMeter":
        self.keep(iteration, journaled)
        return IterationMeter(self, iteration)

    def keep(self, iteration: int, journaled: Mapping[Phase, Usage]) -> None:
        """Keep only the iteration's journaled usage. The rest led to nothing and counts as lost."""
        lost = self._lost.setdefault(iteration, {})
        for phase, used in self._unfinished.get(iteration, {}).items():
            more = _subtract(used, journaled.get(phase, Usage()))
            if more.tokens or more.usd:
                lost[phase] = lost.get(phase, Usage()) + more
        self._unfinished[iteration] = dict(journaled)

    @asynccontextmanager
    async def reserve(
        self, phase: Phase, most: Callable[[], Usage | None], iteration: int | None = None
    ) -> AsyncIterator["MeterReservation"]:
        """See learnloop_service.training.budget.IterationBudget. Charges `iteration`, by default the next to finish."""
        charged = self.iteration if iteration is None else iteration
        reservation = MeterReservation(self, charged, phase)
        await self._admit(reservation, most)
        try:
            yield reservation
        finally:
            self._open.remove(reservation)
            self._notify_waiting()

    async def _admit(self, reservation: "MeterReservation", most: Callable[[], Usage | None]) -> None:
        """Wait until a call fits, and reserve what it needs. Raises RunBudgetReached.

        After a call that did not fit, no other call starts; running calls finish.
        """
        while True:
            if not self.limited:
                self._open.append(reservation)
                return
            if self._reached is not None:
                raise RunBudgetReached(self._reached)
            needed = most()
            alone = needed is None and bool(self._open)
            exceeded = self._exceeded(needed)
            if exceeded is None and not alone:
                reservation.remaining = needed or Usage()
                self._open.append(reservation)
                if (exceeded := await self._reserve_of_day(reservation, needed)) is None:
                    return
                self._open.remove(reservation)
                self._notify_waiting()
                if exceeded.waits:
                    await asyncio.sleep(_AGAIN_S)
                    continue
            if exceeded is not None and not self._open:
                raise self._stop_at(exceeded)
            await self._changed.wait()

    async def _reserve_of_day(self, reservation: "MeterReservation", usage: Usage | None) -> BudgetExceeded | None:
        if self.day is None or not self.day.limited:
            return None
        exceeded: BudgetExceeded | None = await self.day.reserve(reservation, usage)
        return exceeded

    @property
    def reserved(self) -> Usage:
        """What calls in progress have reserved of the day's budgets. Can be read on any thread."""
        return sum((reservation.of_day for reservation in list(self._open)), Usage())

    @property
    def limited(self) -> bool:
        """Whether there is any limit."""
        return self._budget != StoredBudget() or (self.day is not None and self.day.limited)

    async def extend(self, reservation: "MeterReservation", most: Callable[[], Usage]) -> None:
        """Reserve more for a running call once it fits. Raises RunBudgetReached."""
        while (more := _subtract(most(), reservation.remaining)).tokens:
            exceeded = self._exceeded(more)
            if exceeded is None:
                reservation.remaining += more
                exceeded = await self._reserve_of_day(reservation, _subtract(_summed(most()), reservation.of_day))
                if exceeded is None:
                    return
                reservation.remaining = _subtract(reservation.remaining, more)
            if all(other.waits for other in self._open if other is not reservation):
                raise self._stop_at(exceeded)
            reservation.waits = True
            try:
                await self._changed.wait()
            finally:
                reservation.waits = False

    def spend(self, iteration: int, phase: Phase, used: Usage) -> None:
        """Record usage."""
        self.total += used
        phases = self._unfinished.setdefault(iteration, {})
        phases[phase] = phases.get(phase, Usage()) + used

    def _stop_at(self, exceeded: BudgetExceeded) -> RunBudgetReached:
        self._reached = exceeded
        return RunBudgetReached(exceeded)

    def _notify_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _exceeded(self, needed: Usage | None) -> BudgetExceeded | None:
        spent, more = self.spent, sum((reservation.remaining for reservation in self._open), needed or Usage())
        after = {
            "usd": spent.usd + (more.usd or 0.0),
            "minutes": spent.minutes,
            "tokens": spent.tokens + more.tokens,
        }
        for unit, needs in after.items():
            most = getattr(self._budget, f"max_{unit}")
            # A call whose usage cannot be foreseen starts while anything is left.
            unforeseen = needed is None or unit == "minutes"
            if most is not None and (needs > most or (unforeseen and needs >= most)):
                return BudgetExceeded(f"max_{unit}", most, needs, spent)
        return None


@dataclass(frozen=True, slots=True)
class IterationMeter:
    """Charges calls to an iteration (learnloop_service.training.budget.IterationBudget)."""

    meter: Meter
    iteration: int

    def reserve(
        self, phase: Phase, most: Callable[[], Usage | None]
    ) -> AbstractAsyncContextManager["MeterReservation"]:
        return self.meter.reserve(phase, most, self.iteration)


@dataclass(eq=False)
class MeterReservation:
    """The reservation for one call (learnloop_service.training.budget.Reservation)."""

    meter: Meter
    iteration: int
    phase: Phase
    remaining: Usage = field(default_factory=Usage)
    """The reserved usage that is not spent yet."""
    of_day: Usage = field(default_factory=Usage)
    """The same of the day's budgets, all tokens as completion tokens."""
    waits: bool = False
    """Whether the call waits because it needs more than there is."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        if self.meter.limited:
            await self.meter.extend(self, most)

    def spend(self, used: Usage) -> None:
        self.remaining, self.of_day = _subtract(self.remaining, used), _subtract(self.of_day, _summed(used))
        self.meter.spend(self.iteration, self.phase, used)


_NOTHING_USD = 1e-9


def _summed(usage: Usage) -> Usage:
    return Usage(0, usage.tokens, usage.usd or 0.0)


def _subtract(whole: Usage, part: Usage) -> Usage:
    usd = None if whole.usd is None else max(0.0, whole.usd - (part.usd or 0.0))
    if usd is not None and usd < _NOTHING_USD:  # a rounding error
        usd = 0.0
    return Usage(
        max(0, whole.prompt_tokens - part.prompt_tokens),
        max(0, whole.completion_tokens - part.completion_tokens),
        usd,
    )
