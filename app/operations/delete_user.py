"""Deletes what users asked, what they thought of it, and the tasks made from it.

Each batch of rows is a transaction, and nothing depends on a list that is only in memory: a deletion that was
interrupted is completed by repeating it. The links from a user to stored scenarios go last, because they lead to the
rest.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, and_, cast, delete, exists, false, func, not_, or_, select, true, tuple_, update
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from learnloop_service.app.auth.caller import ANY_PROJECT
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.dependents import lock_what_ifs
from learnloop_service.app.db.tables import (
    AgentSession,
    Base,
    Checkpoint,
    DatasetVersion,
    Document,
    EvaluationJob,
    Feedback,
    Release,
    ReleaseObservation,
    ReleaseUnit,
    RolloutRecord,
    Run,
    Trajectory,
    UserScenario,
)
from learnloop_service.app.domain.run_state import LIVE
from learnloop_service.app.operations.import_conversations import IDS
from learnloop_service.app.results.folders import remove_folder
from learnloop_service.app.schemas.user_data import ConsentOut, UserDeleted

_BATCH = 1_000
"""Number of rows to delete in one transaction."""


@dataclass(frozen=True, slots=True)
class _Users:
    """Runs and evaluations that use stored scenarios of the user."""

    runs: dict[str, Run] = field(default_factory=dict)
    evaluations: dict[str, EvaluationJob] = field(default_factory=dict)
    is_of_answers: bool = False
    """Whether the set has no content, but rows of served answers, which a live run needs to see what it lacks."""

    @property
    def live(self) -> list[str]:
        return (
            []
            if self.is_of_answers
            else [id for id, row in (*self.runs.items(), *self.evaluations.items()) if row.status in LIVE]
        )


@dataclass(frozen=True, slots=True)
class UserDataDeletion:
    """The deletion of one user's data in one project, or in all of them."""

    database: Database
    data_dir: Path
    user_hash: str
    project: str | None
    deleted: Counter[str] = field(default_factory=Counter)

    async def run(self) -> UserDeleted:
        """Delete everything that can be deleted now."""
        links = await self._links()
        users = {key: await self._users_of(key[1]) for key in links}
        checkpoints = await self._trained(links, users)
        remaining = await self._remaining({id for uses in users.values() for id in uses.runs})
        await self._requests()
        for key, ids in links.items():
            if not users[key].live:
                await self._rollouts(ids, users[key])
                await self._content(key, ids)
        unfinished = sorted({id for uses in users.values() for id in uses.live})
        return UserDeleted(
            deleted=dict(self.deleted), trained_checkpoints=checkpoints, unfinished=unfinished, remaining=remaining
        )

    async def consent(self, *session: ColumnElement[bool], train: bool) -> ConsentOut:
        """Say whether the user's sessions and questions, or only that session, may be trained on, and what was."""
        changed, (sessions, asks) = 0, self._requested()
        tables = (AgentSession, session or (AgentSession.id.in_(sessions),)), (Trajectory, (Trajectory.id.in_(asks),))
        for table, which in tables[: 1 if session else 2]:
            async with self.database.begin() as tx:
                rows = update(table).where(*which, table.may_train.is_not(train)).values(may_train=train)
                changed += len((await tx.execute(rows.returning(table.id))).all())
        links = await self._links()
        trained = await self._trained(links, {key: await self._users_of(key[1]) for key in links})
        return ConsentOut(changed=changed, trained_checkpoints=trained)

    async def _links(self) -> dict[tuple[str, str], list[str]]:
        """Return the ids of the user's scenarios by project and hash of the stored set."""
        of_user = and_(UserScenario.user_hash == self.user_hash, self._of_project(UserScenario.project))
        links = dict[tuple[str, str], list[str]]()
        async with self.database() as tx:
            for row in (await tx.execute(select(UserScenario).where(of_user))).scalars():
                links.setdefault((row.project, row.sha256), []).append(row.scenario_id)
        return links

    async def _users_of(self, sha256: str) -> _Users:
        uses = {"environment": {"config": {"scenarios": {"sha256": sha256}}}}
        learns = {"warm_start": {"demonstrations": {"sha256": sha256}}}
        of_run = or_(*(Run.request.contains(part) for part in (uses, learns, {"served": {"sha256": sha256}})))
        async with self.database() as tx:
            runs = (await tx.execute(select(Run).where(of_run))).scalars().all()
            jobs = (await tx.execute(select(EvaluationJob).where(EvaluationJob.request.contains(uses)))).scalars().all()
        is_of_answers = any(run.request.get("served", {}).get("sha256") == sha256 for run in runs)
        return _Users({run.id: run for run in runs}, {job.id: job for job in jobs}, is_of_answers)

    async def _remaining(self, runs: Collection[str]) -> list[str]:
        """Return the stored sets that keep some of the user's data: those that all projects share, unless the deletion
        is for all projects, and demonstrations from rollouts of these runs that have no links to users, because an
        earlier version stored them."""
        of_user = (UserScenario.project == Document.project, UserScenario.sha256 == Document.sha256)
        shared = exists().where(*of_user, UserScenario.user_hash == self.user_hash, Document.project == ANY_PROJECT)
        version, made_from = DatasetVersion, DatasetVersion.origin["run_id"].astext
        without_links = and_(
            exists().where(
                version.project == Document.project, version.sha256 == Document.sha256, made_from.in_(sorted(runs))
            ),
            Document.kind == "demonstrations",
            not_(Document.content.bool_op("@?")(cast("$[*].id", JSONPATH))),
        )
        query = select(Document.kind, Document.sha256).where(
            or_(without_links, false() if self.project is None else shared)
        )
        async with self.database() as tx:
            return sorted(f"/{kind}/{sha256}" for kind, sha256 in await tx.execute(query))

    async def _trained(
        self, links: dict[tuple[str, str], list[str]], users: dict[tuple[str, str], _Users]
    ) -> list[str]:
        """Return the checkpoints that were trained on the user's tasks, or started from one that was."""
        checkpoints, frontier = set[str](), list[Run]()
        async with self.database() as tx:
            for key, ids in links.items():
                document = await tx.get(Document, key)
                rows = [] if document is None else document.content
                if any(row.get("id") in ids and row.get("split", "train") == "train" for row in rows):
                    frontier += users[key].runs.values()
            examined = {run.id for run in frontier}
            new = await _checkpoints(tx, frontier, first_iteration=1)
            while new - checkpoints:
                checkpoints |= new
                same_model = [(run.model_project, run.model_name) for run in frontier]
                later = and_(
                    tuple_(Run.model_project, Run.model_name).in_(same_model), Run.id > min(run.id for run in frontier)
                )
                query = select(Run).where(or_(Run.base_model.in_(sorted(new)), later), Run.id.not_in(sorted(examined)))
                if not (frontier := list((await tx.execute(query)).scalars())):
                    break
                examined |= {run.id for run in frontier}
                new = await _checkpoints(tx, frontier, first_iteration=0)
        return sorted(checkpoints)

    def _requested(self) -> tuple[Any, Any]:
        """Select the ids of the user's sessions, and those of the questions that the user asked."""
        sessions = select(AgentSession.id).where(
            AgentSession.user_hash == self.user_hash, self._of_project(AgentSession.project)
        )
        asked_in = func.coalesce(Run.model_project, Trajectory.project, func.split_part(Trajectory.asked_as, "/", 1))
        asks = (
            select(Trajectory.id)
            .outerjoin(Run, Run.id == Trajectory.run_id)
            .where(Trajectory.user_hash == self.user_hash, self._of_project(asked_in))
        )
        return sessions, asks

    async def _requests(self) -> None:
        """Delete sessions, questions and feedback, and what releases recorded of the user."""
        sessions, asks = self._requested()
        releases = select(Release.id).where(self._of_project(Release.project))
        for name, table in (("release_units", ReleaseUnit), ("release_observations", ReleaseObservation)):
            of_user = or_(table.unit == self.user_hash, table.unit.in_(sessions))
            await self._delete(name, table, table.unit, and_(of_user, table.release_id.in_(releases)))
        about = or_(
            and_(Feedback.user_hash == self.user_hash, self._of_project(Feedback.project)),
            *(column.in_(sessions) for column in (Feedback.session_id, Feedback.against_session_id)),
            *(column.in_(asks) for column in (Feedback.trajectory_id, Feedback.against_id)),
        )
        await self._delete("feedback", Feedback, Feedback.id, about)
        await self._delete("asks", Trajectory, Trajectory.id, Trajectory.id.in_(asks))
        await self._delete("sessions", AgentSession, AgentSession.id, AgentSession.id.in_(sessions))

    async def _rollouts(self, ids: Collection[str], users: _Users) -> None:
        """Delete the rollouts on scenarios of one stored set. Demonstrations have none.

        Archived rollouts and the sessions of rollouts are deleted for all scenarios of the runs, because they do not
        name theirs.
        """
        if users.is_of_answers or all(id.startswith(IDS["demonstrations"]) for id in ids):
            return
        of_owners = or_(Trajectory.run_id.in_(users.runs), Trajectory.evaluation_id.in_(users.evaluations))
        await self._delete("rollouts", Trajectory, Trajectory.id, and_(of_owners, Trajectory.scenario_id.in_(ids)))
        sessions = or_(AgentSession.run_id.in_(users.runs), AgentSession.evaluation_id.in_(users.evaluations))
        await self._delete(None, AgentSession, AgentSession.id, sessions)
        for run_id in users.runs:
            async with self.database.begin() as tx:
                await tx.execute(delete(RolloutRecord).where(RolloutRecord.run_id == run_id))
            await self._note_pruned(Run, run_id, "trajectories", "rollouts")
            await remove_folder(self.data_dir, run_id)
        for evaluation_id in users.evaluations:
            await self._note_pruned(EvaluationJob, evaluation_id, "trajectories")

    async def _content(self, key: tuple[str, str], ids: Collection[str]) -> None:
        """Delete the scenarios or demonstrations of one stored set, and then the links to them.

        The set keeps its hash as its name, although its content no longer has that hash. Its versions say what is left.
        Demonstrations of which nothing is left are deleted whole, since a run cannot learn from them.
        """
        project, sha256 = key
        of_set = and_(UserScenario.project == project, UserScenario.sha256 == sha256)
        versions = and_(DatasetVersion.project == project, DatasetVersion.sha256 == sha256)
        async with self.database.begin() as tx:
            document = await tx.get(Document, key, with_for_update=True)
            if document is not None and document.kind != "served":
                rest = [row for row in document.content if row.get("id") not in ids]
                self.deleted[document.kind] += len(document.content) - len(rest)
                document.content = rest
                await tx.execute(update(DatasetVersion).where(versions).values(size=len(rest)))
                if not rest and document.kind == "demonstrations":
                    await tx.execute(delete(DatasetVersion).where(versions))
                    await tx.delete(document)
            await tx.execute(delete(UserScenario).where(of_set, UserScenario.scenario_id.in_(ids)))

    async def _note_pruned(self, table: type[Run] | type[EvaluationJob], id: str, *kinds: str) -> None:
        async with self.database.begin() as tx:
            now = (await tx.execute(select(func.now()))).scalar_one().isoformat()
            noted = table.pruned.op("||")(cast(dict.fromkeys(kinds, now), JSONB))
            await tx.execute(update(table).where(table.id == id).values(pruned=noted))

    async def _delete(
        self, name: str | None, table: type[Base], key: InstrumentedAttribute[str], which: ColumnElement[bool]
    ) -> None:
        """Delete the rows in batches, and count them under the name."""
        batch = select(key).where(which).limit(_BATCH)
        while True:
            async with self.database.begin() as tx:
                ids = sorted((await tx.execute(batch)).scalars())
                if table is Trajectory:
                    await lock_what_ifs(tx, Trajectory.id.in_(ids))
                gone = (await tx.execute(delete(table).where(which, key.in_(ids)).returning(key))).all()
            if name is not None:
                self.deleted[name] += len(gone)
            if len(ids) < _BATCH:
                return

    def _of_project(self, column: Any) -> ColumnElement[bool]:
        condition: ColumnElement[bool] = true() if self.project is None else column == self.project
        return condition


async def _checkpoints(tx: AsyncSession, runs: Sequence[Run], first_iteration: int) -> set[str]:
    """Return the checkpoints of these runs that still exist, as PROJECT/NAME@STEP."""
    query = (
        select(Run.model_project + "/" + Run.model_name, Checkpoint.step)
        .join(Checkpoint, Checkpoint.run_id == Run.id)
        .where(Run.id.in_([run.id for run in runs]), Checkpoint.iteration >= first_iteration)
        .where(Checkpoint.deleted_at.is_(None))
    )
    return {f"{model}@{step}" for model, step in await tx.execute(query)}
