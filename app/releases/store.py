"""Reads releases, and does what a person asks of one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import (
    Checkpoint,
    Promotion,
    Release,
    ReleaseEvent,
    ReleaseObservation,
    ReleaseUnit,
    Run,
)
from learnloop_service.app.domain.release_rules import ReleaseRules
from learnloop_service.app.domain.release_state import Arm, ReleaseReason, ReleaseState
from learnloop_service.app.errors import NotAllowed, existing
from learnloop_service.app.instruments import RELEASE_DECISIONS
from learnloop_service.app.releases import counts, moves
from learnloop_service.app.releases.evidence import ReleaseEvidence
from learnloop_service.app.releases.outcomes import late_events
from learnloop_service.app.schemas.releases import ReleaseVerified
from learnloop_service.training.statistics.two_arms import EffectEstimate

Verb = Literal["hold", "resume", "rollback", "promote"]
_ALLOWED: Mapping[str, Sequence[Verb]] = {
    ReleaseState.TRIAL: ("rollback",),
    ReleaseState.RUNNING: ("hold", "rollback", "promote"),
    ReleaseState.HELD: ("resume", "rollback", "promote"),
}
"""What a person can do, by state."""


_WITH_STABLE = select(Release, Promotion).join(Promotion, Release.promotion_id == Promotion.id)


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """The enrolled units of one arm."""

    units: int = 0
    open_windows: int = 0
    mean_outcome: float | None = None
    late_events: int = 0


@dataclass(frozen=True, slots=True)
class WholeRelease:
    """A release with what is known about it."""

    row: Release
    stable: Promotion
    arms: Mapping[Arm, ArmFigures]
    made: Mapping[Arm, Checkpoint | None]
    """How a run made the checkpoint of each arm; None if no run is known."""
    met: int
    """Number of units that met the candidate in this stage and were counted."""
    confirmation: Sequence[EffectEstimate]
    """Effects in the first and in the second windows of units that confirm its promotion; empty without one."""


class ReleaseStore:
    """Releases in the database. Each call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, id: str) -> tuple[Release, Promotion]:
        """Return a release and the promotion of its stable arm. Raises NotFound."""
        async with self._database() as tx:
            query = _WITH_STABLE.where(Release.id == id)
            release, stable = existing((await tx.execute(query)).one_or_none(), "release", id)
        return release, stable

    async def whole(self, id: str) -> WholeRelease:
        """Return a release with what is known about it. Raises NotFound."""
        row, stable = await self.get(id)
        unit = ReleaseUnit
        of_arm = (
            select(unit.arm, func.count(), func.count().filter(unit.closed_at.is_(None)), func.avg(unit.outcome))
            .where(unit.release_id == id)
            .group_by(unit.arm)
        )
        async with self._database() as tx:
            checkpoints = {Arm.CANDIDATE: (row.model_name, row.step), Arm.STABLE: (stable.model_name, stable.step)}
            records = {arm: await _record_of(tx, row.project, *of) for arm, of in checkpoints.items()}
            late = await late_events(tx, row)
            arms = {
                Arm(arm): ArmFigures(units, open_windows, mean, late.get(Arm(arm), 0))
                for arm, units, open_windows, mean in (await tx.execute(of_arm)).all()
            }
            met = await counts.met(tx, id, row.stage, row.looks)
            confirms = row.confirming_id or row.state == ReleaseState.CONFIRMED or row.reason == ReleaseReason.NOVELTY
            confirmation = await counts.confirmation(tx, id) if confirms else []
        return WholeRelease(row, stable, arms, records, met, confirmation)

    async def listed(
        self, *, project: str | None, before: str | None, limit: int, name: str | None = None, by: str | None = None
    ) -> Sequence[tuple[Release, Promotion]]:
        """Return releases of one project or of all, newest first, or only those of a name, or that someone started."""
        only = (Release.project, project), (Release.name, name), (Release.started_by, by)
        query = newest_first(_WITH_STABLE, Release.id, before, limit, *only)
        async with self._database() as tx:
            return [(row, stable) for row, stable in (await tx.execute(query)).all()]

    async def live(self, project: str | None, name: str | None = None) -> Sequence[tuple[Release, Promotion]]:
        """Return the releases of one project or of all, or of a name, that are live or being confirmed."""
        query = _WITH_STABLE.where(Release.needs_arms())
        if project is not None:
            query = query.where(Release.project == project)
        if name is not None:
            query = query.where(Release.name == name)
        async with self._database() as tx:
            return [(row, stable) for row, stable in (await tx.execute(query)).all()]

    async def units(self, id: str, *, after: str | None, limit: int) -> Sequence[ReleaseUnit]:
        """Return the enrolled units in the order of their hashes, from the one after `after`."""
        query = select(ReleaseUnit).where(ReleaseUnit.release_id == id).order_by(ReleaseUnit.unit).limit(limit)
        if after is not None:
            query = query.where(ReleaseUnit.unit > after)
        async with self._database() as tx:
            return (await tx.execute(query)).scalars().all()

    async def events(self, id: str, *, after: int, limit: int) -> Sequence[ReleaseEvent]:
        """Return the release's events in order, from the one after `after`."""
        query = select(ReleaseEvent).where(ReleaseEvent.release_id == id, ReleaseEvent.seq > after)
        async with self._database() as tx:
            return (await tx.execute(query.order_by(ReleaseEvent.seq).limit(limit))).scalars().all()

    async def act(self, id: str, verb: Verb, actor: str, *, end_sessions: bool = False) -> None:
        """Do what a person asks of a live release. Raises NotFound, or NotAllowed if its state does not permit it."""
        async with self._database.begin() as tx:
            row = existing(await moves.locked(tx, id), "release", id)
            if verb not in (allowed := _ALLOWED.get(row.state, ())):
                raise NotAllowed(f"Cannot {_SPOKEN[verb]} a release that is {_STATES[row.state]}", allowed)
            person = ReleaseReason.PERSON
            if verb == "hold":
                event = await moves.hold(tx, row, person, actor, row.evidence)
            elif verb == "resume":
                event = await moves.resume(tx, row, actor)
            elif verb == "promote":
                event = await moves.promote(tx, row, person, actor, row.evidence)
            else:
                event = await moves.roll_back(tx, row, person, actor, row.evidence, end_sessions=end_sessions)
        RELEASE_DECISIONS.labels(event.removeprefix("release.")).inc()

    async def verified(self, id: str) -> ReleaseVerified:
        """Compute the evidence of the newest look and of every event again, from the observations. Raises NotFound."""
        row, _ = await self.get(id)
        rules = ReleaseRules.parse(row.rules)
        found = [event.data.get("evidence") or {} for event in await self.events(id, after=0, limit=1_000)]
        events = [evidence for evidence in found if "look" in evidence]
        stored = events if row.evidence is None else [*events, row.evidence]
        differences: dict[str, None] = {}
        async with self._database() as tx:
            for evidence in map(ReleaseEvidence.parse, stored):
                cells = await counts.count_again(tx, id, evidence.look)
                met = await counts.met(tx, id, evidence.stage, evidence.look)
                differences |= dict.fromkeys(evidence.differences(rules, cells, met))
            confirmation = [asdict(effect) for effect in await counts.confirmation(tx, id)]
            if any(evidence.get("confirmation", confirmation) != confirmation for evidence in found):
                differences["The confirmation does not follow from the units."] = None
            counted = select(func.count()).where(
                ReleaseObservation.release_id == id, ReleaseObservation.look <= row.looks
            )
            observations = (await tx.execute(counted)).scalar_one()
        return ReleaseVerified(
            verified=not differences, observations=observations, events=len(events), differences=list(differences)
        )


async def _record_of(tx: AsyncSession, project: str, model_name: str, step: int) -> Checkpoint | None:
    """Return a checkpoint's record by the newest run that made it."""
    of_model = (Run.model_project == project, Run.model_name == model_name, Checkpoint.step == step)
    query = select(Checkpoint).join(Run, Run.id == Checkpoint.run_id).where(*of_model)
    return (await tx.execute(query.order_by(Run.id.desc()).limit(1))).scalar_one_or_none()


_SPOKEN: Mapping[Verb, str] = {"hold": "hold", "resume": "resume", "rollback": "roll back", "promote": "promote"}
_STATES: Mapping[str, str] = {
    ReleaseState.TRIAL: "in its trial",
    ReleaseState.RUNNING: "running",
    ReleaseState.HELD: "held",
    ReleaseState.PROMOTED: "promoted",
    ReleaseState.CONFIRMED: "confirmed",
    ReleaseState.ROLLED_BACK: "rolled back",
    ReleaseState.OVERTAKEN: "overtaken",
}
