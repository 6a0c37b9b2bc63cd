"""Diagnoses of runs in the database: saved with their iteration, and the rule that pauses a run because of them."""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Iteration, Run, SavedDiagnosis
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.stored_request import DiagnosisRule
from learnloop_service.app.events.log import append
from learnloop_service.environment.json_type import Json
from learnloop_service.training.diagnosis.diagnosis import Diagnosis, Severity, current_causes
from learnloop_service.training.diagnosis.facts import Facts


class DiagnosisStop(Exception):
    """Raised when a run's own rule pauses it because of a diagnosis."""


async def facts_of(database: Database, run_id: str) -> list[Facts]:
    """Return the facts of a run's saved iterations in order. Iterations of earlier versions have none."""
    query = select(Iteration.facts).where(Iteration.run_id == run_id, Iteration.facts.is_not(None))
    async with database() as tx:
        rows = (await tx.execute(query.order_by(Iteration.iteration))).scalars()
        return [Facts.parse(facts) for facts in rows if facts is not None]


async def diagnoses_of(database: Database, run_id: str) -> Sequence[SavedDiagnosis]:
    """Return a run's diagnoses."""
    async with database() as tx:
        return (await tx.execute(select(SavedDiagnosis).where(SavedDiagnosis.run_id == run_id))).scalars().all()


def causes_of(run: Run) -> list[str]:
    """Return the names of a run's current causes, the one that explains the others first. Notes do not count."""
    return list(run.causes)


async def save(
    tx: AsyncSession,
    lease: Lease[Run],
    iteration: int,
    diagnoses: Sequence[Diagnosis],
    rule: DiagnosisRule,
    collapse_pause: str | None = None,
) -> None:
    """Save the diagnoses after an iteration, with an event for each that was named or cleared. `collapse_pause` is why
    on_collapse pauses the run now."""
    of_run = select(SavedDiagnosis.cause, SavedDiagnosis.state).where(SavedDiagnosis.run_id == lease.id)
    before = {cause: state for cause, state in (await tx.execute(of_run)).all()}  # noqa: C416 - rows are no tuples to mypy
    for diagnosis in diagnoses:
        row = _row(diagnosis)
        statement = insert(SavedDiagnosis).values(run_id=lease.id, **row)
        await tx.execute(statement.on_conflict_do_update(index_elements=["run_id", "cause"], set_=row))
    changed = [diagnosis for diagnosis in diagnoses if before.get(diagnosis.cause) != diagnosis.state]
    for diagnosis in changed:
        data = {
            name: value for name, value in _row(diagnosis).items() if name not in ("explained_by", "named_at_iteration")
        }
        await append(tx, lease.id, EventType.RUN_DIAGNOSIS, lease.actor, data, iteration=iteration)
    values: dict[str, Json] = {"causes": [str(cause) for cause in current_causes(diagnoses)]}
    if (reason := collapse_pause or pause_reason(changed, rule)) is not None:
        values["diagnosis_pause"] = reason
    await tx.execute(update(Run).where(Run.id == lease.id).values(**values))


def pause_reason(changed: Sequence[Diagnosis], rule: DiagnosisRule) -> str | None:
    """Return why the rule pauses the run now: the first of the newly named diagnoses that are serious enough.

    A consequence of another cause does not: who resumes a run in spite of a cause accepts what follows from it.
    """
    if rule.action != "pause":
        return None
    least = Severity(rule.severity).rank
    serious = [diagnosis for diagnosis in changed if _is_news(diagnosis) and diagnosis.severity.rank >= least]
    return f"{serious[0].cause}: {serious[0].summary} (on_diagnosis)" if serious else None


def _is_news(diagnosis: Diagnosis) -> bool:
    return diagnosis.state == "active" and diagnosis.explained_by is None


async def check_rule(database: Database, run_id: str) -> None:
    """Raise DiagnosisStop if the run's rule pauses it now. A run whose iterations are all saved is not paused."""
    query = select(Run.diagnosis_pause).where(Run.id == run_id, Run.next_iteration <= Run.iterations_total)
    async with database() as tx:
        reason = (await tx.execute(query)).scalar_one_or_none()
    if reason is not None:
        raise DiagnosisStop(reason)


def _row(diagnosis: Diagnosis) -> dict[str, Json]:
    remedy = {"text": diagnosis.remedy.text, "how": diagnosis.remedy.how, "request": diagnosis.remedy.request}
    return {
        "cause": str(diagnosis.cause),
        "state": diagnosis.state,
        "severity": str(diagnosis.severity),
        "first_iteration": diagnosis.first_iteration,
        "named_at_iteration": diagnosis.named_at_iteration,
        "summary": diagnosis.summary,
        "evidence": dict(diagnosis.evidence),
        "remedy": remedy,
        "explained_by": diagnosis.explained_by,
    }
