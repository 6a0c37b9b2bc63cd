"""The ledger: what each phase of an iteration used, as rows. The sum of a run's rows is what the run has spent.

An iteration has at most one row per phase that is not wasted. Work that stops in the middle of an iteration saves what
it used so far. When the iteration is saved, its seconds are added to those, and its tokens and price are those of the
result. Wasted rows are for work that led to nothing: it was lost, failed, or belongs to a group that could not be
trained on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sqlalchemy import Float, Select, cast, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.claims.lease import Lease, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import JudgeCall, LedgerEntry, Run, Trajectory
from learnloop_service.app.errors import Conflict
from learnloop_service.app.runs.budget import Meter, PriorUsage, RunUsage, amount
from learnloop_service.judges.base import JudgeCall as JudgeCallResult
from learnloop_service.training.budget import Usage, usage_of_calls, usage_of_rollouts
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationResult, ScoredRollout

OTHER = "other"
"""Phase name for driven time outside finished phases: starting, saving, and interrupted work."""


@dataclass(frozen=True, slots=True)
class NewLedgerEntry:
    """A row to be saved. Wasted work has no seconds, because it was done alongside other work."""

    phase: str
    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    wasted: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all rows of a run, and over its wasted ones."""

    seconds: float
    usage: Usage
    wasted: Usage

    @property
    def spent(self) -> RunUsage:
        """The sums as a budget counts them."""
        return RunUsage(self.usage.usd or 0.0, self.seconds / 60, self.usage.tokens)


def entries_of(result: IterationResult, meter: Meter, driven_s: float) -> list[NewLedgerEntry]:
    """Return the rows of a finished iteration. `driven_s` is the time driven since rows were last saved.

    What the meter counted beyond the result led to nothing: requests of rollouts that were restarted.
    """
    seconds = {phase: getattr(result.timing, f"{phase}_s") for phase in Phase}
    rollouts: dict[Phase, list[tuple[ScoredRollout, bool]]] = {
        Phase.ROLLOUT: [
            (scored, scored.rollout.error is not None or group.skipped is not None)
            for group in result.groups
            for scored in group.rollouts
        ],
        Phase.EVALUATE: _rollouts(scored for evaluation in result.evaluations for scored in evaluation.rollouts),
    }
    calls: dict[Phase, list[tuple[JudgeCallResult, bool]]] = {
        Phase.JUDGE: [
            (call, call.error is not None or group.skipped is not None)
            for group in result.groups
            for call in group.judge_calls
        ],
        Phase.EVALUATE: _calls(call for evaluation in result.evaluations for call in evaluation.judge_calls),
    }
    if result.reflection is not None:
        rollouts[Phase.REFLECT] = _rollouts([result.reflection.showcase])
        calls[Phase.REFLECT] = _calls(result.reflection.judge_calls)
    entries = []
    for phase in Phase:
        for wasted in (False, True):
            phase_rollouts = [scored.rollout for scored, in_vain in rollouts.get(phase, ()) if in_vain == wasted]
            used = usage_of_rollouts(phase_rollouts) + usage_of_calls(
                call for call, in_vain in calls.get(phase, ()) if in_vain == wasted
            )
            entries.append(NewLedgerEntry(phase, 0.0 if wasted else seconds[phase], used, wasted))
    meter.keep(
        result.iteration,
        {phase: sum((entry.usage for entry in entries if entry.phase == phase), Usage()) for phase in Phase},
    )
    entries.append(NewLedgerEntry(OTHER, max(0.0, driven_s - sum(seconds.values()))))
    entries += _lost(meter.lost(result.iteration))
    return [entry for entry in entries if entry.seconds or _used_any(entry.usage)]


def _rollouts(scored: Iterable[ScoredRollout]) -> list[tuple[ScoredRollout, bool]]:
    return [(scored_rollout, scored_rollout.rollout.error is not None) for scored_rollout in scored]


def _calls(calls: Iterable[JudgeCallResult]) -> list[tuple[JudgeCallResult, bool]]:
    return [(call, call.error is not None) for call in calls]


def _lost(lost: Mapping[Phase, Usage]) -> list[NewLedgerEntry]:
    return [NewLedgerEntry(phase, 0.0, used, wasted=True) for phase, used in lost.items()]


def _used_any(usage: Usage) -> bool:
    return usage.tokens > 0 or usage.usd is not None


async def save(
    tx: AsyncSession, run_id: str, iteration: int, entries: Sequence[NewLedgerEntry], *, whole: bool
) -> None:
    """Save rows of an iteration in the caller's transaction.

    `whole` means that the iteration is finished and the rows contain all of its tokens.
    """
    of_iteration = (LedgerEntry.run_id == run_id, LedgerEntry.iteration == iteration, LedgerEntry.wasted.is_(False))
    before = {row.phase: row for row in (await tx.execute(select(LedgerEntry).where(*of_iteration))).scalars()}
    merged = {entry.phase: entry for entry in entries if not entry.wasted}
    for phase, row in before.items():
        entry, stored = merged.get(phase, NewLedgerEntry(phase)), _usage(row)
        usage = entry.usage if whole else _most(entry.usage, stored)
        merged[phase] = replace(entry, seconds=entry.seconds + row.seconds, usage=usage)
    await tx.execute(delete(LedgerEntry).where(*of_iteration))
    rows = [
        {
            "run_id": run_id,
            "iteration": iteration,
            "phase": entry.phase,
            "seconds": entry.seconds,
            "prompt_tokens": entry.usage.prompt_tokens,
            "completion_tokens": entry.usage.completion_tokens,
            "usd": entry.usage.usd,
            "wasted": entry.wasted,
        }
        for entry in [*merged.values(), *(entry for entry in entries if entry.wasted)]
    ]
    if rows:
        await tx.execute(insert(LedgerEntry), rows)


async def save_unfinished(database: Database, lease: Lease[Run], meter: Meter, seconds: float) -> None:
    """Save what the unfinished iterations have used, when the work stops. Raises LeaseLost."""
    async with database.begin() as tx:
        await require(tx, lease)
        for iteration in sorted({meter.iteration, *meter.unfinished}):
            used = [NewLedgerEntry(phase, 0.0, usage) for phase, usage in meter.unfinished.get(iteration, {}).items()]
            driven = [NewLedgerEntry(OTHER, seconds)] if iteration == meter.iteration else []
            entries = [*used, *driven, *_lost(meter.lost(iteration))]
            await save(tx, lease.id, iteration, entries, whole=False)


async def prior_usage(database: Database, run_id: str) -> PriorUsage:
    """Return what a run used before this worker drives it."""
    uncached = (JudgeCall.run_id == run_id, JudgeCall.cached.is_(False))
    most = select(
        select(func.max(cast(Trajectory.prompt_tokens, Float) / Trajectory.turns))
        .where(Trajectory.run_id == run_id, Trajectory.turns > 0)
        .scalar_subquery(),
        *(
            select(func.max(column)).where(*uncached).scalar_subquery()
            for column in (JudgeCall.prompt_tokens, JudgeCall.completion_tokens, JudgeCall.cost_usd)
        ),
    )
    async with database() as tx:
        run = await tx.get_one(Run, run_id)
        rows = (await tx.execute(select(LedgerEntry).where(LedgerEntry.run_id == run_id))).scalars().all()
        prompt_per_turn, *judging = (await tx.execute(most)).one()
    unfinished = [row for row in rows if row.iteration >= run.next_iteration and not row.wasted]
    by_iteration: dict[int, dict[Phase, Usage]] = {}
    for row in unfinished:
        if row.phase != OTHER:
            by_iteration.setdefault(row.iteration, {})[Phase(row.phase)] = _usage(row)
    return PriorUsage(
        usage=sum((_usage(row) for row in rows if row not in unfinished), Usage()),
        seconds=sum(row.seconds for row in rows),
        iteration=run.next_iteration,
        unfinished=by_iteration,
        prompt_per_turn=prompt_per_turn,
        judging=None if judging[0] is None else Usage(*judging),
    )


SUMS = ("wasted", "seconds", "prompt_tokens", "completion_tokens", "usd")
"""Columns of `sums_of`."""


def sums_of(run_id: str) -> Select[Any, Any]:
    """Return the query for the sums of a run's wasted rows, and of its other rows."""
    sums = (func.sum(getattr(LedgerEntry, name)).label(name) for name in SUMS[1:])
    return select(LedgerEntry.wasted, *sums).where(LedgerEntry.run_id == run_id).group_by(LedgerEntry.wasted)


def totals_of(sums: Iterable[Mapping[str, Any]]) -> Totals:
    """Build totals from the rows of `sums_of`."""
    seconds, by_kind = 0.0, {False: Usage(), True: Usage()}
    for row in sums:
        seconds += row["seconds"]
        by_kind[row["wasted"]] = Usage(int(row["prompt_tokens"]), int(row["completion_tokens"]), row["usd"])
    return Totals(seconds, by_kind[False] + by_kind[True], by_kind[True])


async def totals(tx: AsyncSession, run_id: str) -> Totals:
    """Return the totals of a run."""
    return totals_of([dict(row) for row in (await tx.execute(sums_of(run_id))).mappings()])


def change_budget(run: Run, limits: Mapping[str, Any] | None) -> dict[str, Any]:
    """Change the limits of a resumed run's budget, unless `limits` is None, and return the budget.

    Raises Conflict if it would stop the run again.
    """
    stored = run.stored_request.budget
    budget = {**(asdict(stored) if stored else {}), **(limits or {})}
    if (shortage := run.shortage) is not None:
        limit, needs = shortage["limit"], shortage["needs"]
        most = budget.get(limit)
        if most is not None and (most < needs or most <= shortage["max"]):
            raise Conflict(
                f"The run has used up its budget. Resume it with a `budget` whose {limit} is at least {amount(needs)} "
                f"and more than {amount(shortage['max'])}."
            )
    if limits is not None:
        run.request = {**run.request, "budget": budget}
    return budget


def _usage(row: LedgerEntry) -> Usage:
    return Usage(row.prompt_tokens, row.completion_tokens, row.usd)


def _most(one: Usage, other: Usage) -> Usage:
    priced = [usd for usd in (one.usd, other.usd) if usd is not None]
    return Usage(
        max(one.prompt_tokens, other.prompt_tokens),
        max(one.completion_tokens, other.completion_tokens),
        max(priced, default=None),
    )
