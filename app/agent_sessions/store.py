"""Agent sessions: all SQL that opens, restarts and ends them. All times are the database's."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.agent_sessions.exploring import explore_columns
from learnloop_service.app.auth.agent_session_keys import new_session_key
from learnloop_service.app.auth.caller import Caller, SessionKey
from learnloop_service.app.auth.keys import hash_of
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.newest_first import newest_first
from learnloop_service.app.db.tables import AgentSession, AgentSessionKey, ApiKey
from learnloop_service.app.db.tables.base import prompt_columns
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import Conflict, InvalidRequest, NotFound, TooManyRequests
from learnloop_service.app.releases.exposures import record_in
from learnloop_service.app.releases.split import Exposure
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.rollout.agents.sessions import SessionLimits, SessionOutcome
from learnloop_service.training.rollout.model_calls import Sampling

_SEED_BITS = 53
_RETRY_AFTER_S = 60


class SessionIsOver(Conflict):
    """The session has ended or expired."""

    title = "The session is over"


class OutcomeKnown(Conflict):
    """The session has ended with a different outcome."""

    title = "Another outcome is known"


class ClaimLost(Conflict):
    """Another attempt has replaced the caller's, or the session is over."""

    title = "The claim is lost"


class AttemptMissing(InvalidRequest):
    """The outcome could be that of any of several attempts."""

    title = "The outcome names no attempt"


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """The checkpoint that a session samples from."""

    requested: str
    name: str
    """Name of the model on its server."""
    step: int | None
    backend: str
    run_id: str | None
    """Run that trains the model; None if only the engine knows it."""
    prompt: PromptReference | None = None
    """What the agent is to bring to it; None for texts of its own."""
    exposure: Exposure | None = None
    """What the session meets of a release; None without one."""
    explore: Mapping[str, Json] | None = None
    """How sessions of the promoted name explore, as its promotion has it."""


@dataclass(frozen=True, slots=True)
class RolloutSlot:
    """The rollout that a session belongs to, in a run or in an evaluation."""

    run_id: str | None
    iteration: int
    entry: str
    evaluation_id: str | None = None

    def columns(self) -> dict[str, Json]:
        """Return the values for the columns of the session's row."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """A session to open."""

    project: str
    model: PinnedModel
    ttl: timedelta
    limits: SessionLimits = field(default_factory=SessionLimits)
    sampling: Sampling | None = None
    """None if the client's own parameters apply."""
    seed: int | None = None
    """None for a random seed."""
    explicit_restart: bool = False
    labels: Mapping[str, Json] = field(default_factory=dict)
    id: str | None = None
    """None for a new id."""
    user_hash: str | None = None
    may_train: bool = False
    slot: RolloutSlot | None = None
    opener_sha256: str | None = None
    """Hash of the API key that opens the session, and which the session does not outlive; None if it depends on no
    key."""


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session and its key, which cannot be read again later."""

    row: AgentSession
    key: str | None = field(repr=False)
    """None if the session already existed."""


def outcome_of(row: AgentSession) -> SessionOutcome | None:
    """Return the session's outcome; None if it has not ended, or if it expired."""
    return None if row.outcome is None else SessionOutcome(**row.outcome)


class AgentSessions:
    """The sessions in the database. Methods that take a Caller find only the sessions that it can see."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self, spec: SessionSpec, most_open: int | None = None) -> OpenedSession:
        """Open a session. Raises TooManyRequests if the project already has `most_open` open sessions outside of
        runs."""
        async with self._database.begin() as tx:
            await self._expire(tx, AgentSession.project == spec.project)
            if most_open is not None:
                await _check_room(tx, spec.project, most_open)
            opened = await self._insert(tx, spec)
            if spec.model.exposure is not None:
                await record_in(tx, spec.model.exposure, None)
        assert opened is not None
        return opened

    async def open_in(self, tx: AsyncSession, spec: SessionSpec) -> OpenedSession:
        """Open the session of a rollout in the caller's transaction, or extend the existing one."""
        assert spec.slot is not None
        opened = await self._insert(tx, spec)
        if opened is not None:
            return opened
        row = await self._locked(tx, *_of_slot(spec.slot))
        if row.state == AgentSessionState.OPEN:
            row.expires_at = func.clock_timestamp() + spec.ttl
            await tx.flush()
            await tx.refresh(row)
        return OpenedSession(row, None)

    async def _insert(self, tx: AsyncSession, spec: SessionSpec) -> OpenedSession | None:
        """Insert a session, or return None if its rollout already has one."""
        slot, id = spec.slot, spec.id or str(ULID())
        can_teach = spec.may_train and spec.user_hash is not None and is_on_engine(spec.model.backend)
        key_expires_at = select(ApiKey.expires_at).where(ApiKey.sha256 == spec.opener_sha256).scalar_subquery()
        values: dict[Any, Json] = {
            "id": id,
            "project": spec.project,
            "asked_model": spec.model.requested,
            "model": spec.model.name,
            "step": spec.model.step,
            "backend": spec.model.backend,
            "model_run_id": spec.model.run_id,
            **prompt_columns(spec.model.prompt),
            "seed": secrets.randbits(_SEED_BITS) if spec.seed is None else spec.seed,
            "sampling": spec.sampling
            and {"temperature": spec.sampling.temperature, "max_tokens": spec.sampling.max_tokens},
            "max_calls": spec.limits.max_calls,
            "max_tokens": spec.limits.max_tokens,
            "explicit_restart": spec.explicit_restart,
            AgentSession.labels: dict(spec.labels),
            "opener_sha256": spec.opener_sha256,
            "user_hash": spec.user_hash,
            "may_train": spec.may_train,
            **({} if spec.model.exposure is None else spec.model.exposure.columns()),
            **(explore_columns(spec.model.explore, id) if can_teach else {}),
            "expires_at": func.least(func.clock_timestamp() + spec.ttl, key_expires_at),
            **({} if slot is None else slot.columns()),
        }
        new = insert(AgentSession).values(values).on_conflict_do_nothing().returning(AgentSession)
        row = (await tx.execute(new)).scalar_one_or_none()
        return None if row is None else OpenedSession(row, await _new_key(tx, row.id))

    async def restart(self, of: Caller, session_id: str) -> OpenedSession:
        """Begin the next attempt with a new key, which ends earlier attempts. Raises NotFound, SessionIsOver."""
        async with self._database.begin() as tx:
            return await self.restart_in(tx, *_of_caller(of, session_id))

    async def restart_in(
        self, tx: AsyncSession, *which: ColumnElement[bool], first_unused: bool = False
    ) -> OpenedSession:
        """Like `restart`, in the caller's transaction. With `first_unused`, no agent was given the session's first
        attempt, so that it begins now."""
        row = await self._open_one(tx, *which)
        if row.attempt > 1 or not first_unused:
            row.attempt += 1
            row.uses = 0
        conditions = (AgentSessionKey.session_id == row.id, AgentSessionKey.replaced_at.is_(None))
        await tx.execute(update(AgentSessionKey).where(*conditions).values(replaced_at=func.clock_timestamp()))
        key = await _new_key(tx, row.id)
        await tx.flush()
        return OpenedSession(row, key)

    async def end(
        self, of: Caller, session_id: str, outcome: SessionOutcome, attempt: int | None = None
    ) -> AgentSession:
        """End the session with the outcome of an attempt. Repeating the same outcome changes nothing.

        `attempt` can be None if the caller uses the session's key, or if no other attempt can have the outcome.

        Raises NotFound, SessionIsOver, ClaimLost, AttemptMissing, OutcomeKnown.
        """
        which = _of_caller(of, session_id)
        async with self._database.begin() as tx:
            row = await self._locked(tx, *which)
            if row.state == AgentSessionState.EXPIRED:
                raise SessionIsOver(f"Session {session_id} expired at {row.ended_at:%Y-%m-%d %H:%M:%S} UTC.")
            await _check_attempt(tx, row, of.agent, attempt)
            if row.state == AgentSessionState.ENDED and outcome_of(row) != outcome:
                raise OutcomeKnown(f"Session {session_id} has ended with another outcome, which stays.")
            if row.state == AgentSessionState.OPEN:
                await end_row(tx, row, outcome)
        return row

    async def get(self, of: Caller, session_id: str) -> AgentSession:
        """Return a session. Raises NotFound."""
        async with self._database.begin() as tx:
            return await self._locked(tx, *_of_caller(of, session_id), lock=False)

    async def listed(
        self, of: Caller, *, state: AgentSessionState | None, before: str | None, limit: int
    ) -> Sequence[AgentSession]:
        """List sessions, newest first; `before` is the id of a session."""
        only = (AgentSession.project, of.project), (AgentSession.state, state)
        query = newest_first(select(AgentSession), AgentSession.id, before, limit, *only)
        async with self._database.begin() as tx:
            await self._expire(tx)
            return (await tx.execute(query)).scalars().all()

    async def over(self, ids: Collection[str]) -> Mapping[str, SessionOutcome | None]:
        """Return the sessions that are over, with their outcomes. Deleted sessions count as over."""
        listed = sorted(ids)
        async with self._database.begin() as tx:
            await self._expire(tx, AgentSession.id.in_(listed))
            query = select(AgentSession).where(AgentSession.id.in_(listed))
            rows = {row.id: row for row in (await tx.execute(query)).scalars()}
        by_id = {id: rows.get(id) for id in listed}
        return {
            id: None if row is None else outcome_of(row)
            for id, row in by_id.items()
            if row is None or row.state != AgentSessionState.OPEN
        }

    async def warn(self, session_id: str, warnings: Sequence[str]) -> None:
        """Add the warnings that the session does not have yet."""
        async with self._database.begin() as tx:
            query = select(AgentSession.warnings).where(AgentSession.id == session_id).with_for_update()
            stored = (await tx.execute(query)).scalar_one_or_none()
            if stored is None:
                return
            every = [*stored, *(warning for warning in warnings if warning not in stored)]
            await tx.execute(update(AgentSession).where(AgentSession.id == session_id).values(warnings=every))

    async def expire(self) -> None:
        """Expire the sessions that were not ended in time. They have no outcome."""
        async with self._database.begin() as tx:
            await self._expire(tx)

    async def _expire(self, tx: AsyncSession, *which: ColumnElement[bool]) -> None:
        due = (AgentSession.state == AgentSessionState.OPEN, AgentSession.expires_at <= func.clock_timestamp())
        ended = {"state": AgentSessionState.EXPIRED, "ended_at": AgentSession.expires_at}
        expired = update(AgentSession).where(*due, *which).values(ended)
        await tx.execute(expired.execution_options(synchronize_session=False))

    async def _open_one(self, tx: AsyncSession, *which: ColumnElement[bool]) -> AgentSession:
        row = await self._locked(tx, *which)
        if row.state != AgentSessionState.OPEN:
            raise SessionIsOver(f"Session {row.id} has {row.state}; open a new one.")
        return row

    async def _locked(self, tx: AsyncSession, *which: ColumnElement[bool], lock: bool = True) -> AgentSession:
        """Return the session's row, locked unless `lock` is false. Raises NotFound."""
        await self._expire(tx, *which)
        query = select(AgentSession).where(*which)
        row = (await tx.execute(query.with_for_update() if lock else query)).scalar_one_or_none()
        if row is None:
            raise NotFound("There is no such session.")
        return row


async def _check_attempt(tx: AsyncSession, row: AgentSession, agent: SessionKey | None, attempt: int | None) -> None:
    """Check that the outcome is that of the session's current attempt. Raises ClaimLost, AttemptMissing."""
    if attempt is not None and attempt != row.attempt:
        raise ClaimLost(f"Attempt {attempt} of session {row.id} was replaced by attempt {row.attempt}.")
    if agent is not None:
        query = select(AgentSessionKey.replaced_at).where(AgentSessionKey.sha256 == agent.sha256)
        if (await tx.execute(query)).scalar_one_or_none() is not None:
            raise ClaimLost(
                f"This key belongs to an earlier attempt of session {row.id}; attempt {row.attempt} has replaced it."
            )
    elif attempt is None and row.explicit_restart and row.attempt > 1:
        raise AttemptMissing(
            ("body", "attempt"),
            f"Session {row.id} was restarted: say which attempt has this outcome. The current one is {row.attempt}.",
        )


async def end_row(tx: AsyncSession, row: AgentSession, outcome: SessionOutcome) -> None:
    """End an open session whose row is locked."""
    fields = asdict(outcome) | {"lost": outcome.lost or None}
    row.outcome = {name: value for name, value in fields.items() if value is not None}
    row.state = AgentSessionState.ENDED
    row.ended_at = (await tx.execute(select(func.clock_timestamp()))).scalar_one()
    await tx.flush()


async def _new_key(tx: AsyncSession, session_id: str) -> str:
    key = new_session_key()
    tx.add(AgentSessionKey(sha256=hash_of(key), session_id=session_id))
    await tx.flush()
    return key


async def _check_room(tx: AsyncSession, project: str, most_open: int) -> None:
    await tx.execute(select(func.pg_advisory_xact_lock(func.hashtext(f"agent_session/{project}"))))
    conditions = (AgentSession.project == project, AgentSession.state == AgentSessionState.OPEN)
    query = select(func.count()).where(*conditions, AgentSession.entry.is_(None))
    if (await tx.execute(query)).scalar_one() >= most_open:
        raise TooManyRequests(
            f"Project {project} has {most_open} open sessions, the most that are allowed. "
            "End some with POST /sessions/ID/outcome, or wait until they expire.",
            retry_after_s=_RETRY_AFTER_S,
        )


def _of_caller(of: Caller, session_id: str) -> list[ColumnElement[bool]]:
    return [
        AgentSession.id == session_id,
        *([] if of.project is None else [AgentSession.project == of.project]),
    ]


def _of_slot(slot: RolloutSlot) -> list[ColumnElement[bool]]:
    return [
        AgentSession.run_id.is_not_distinct_from(slot.run_id),
        AgentSession.evaluation_id.is_not_distinct_from(slot.evaluation_id),
        AgentSession.iteration == slot.iteration,
        AgentSession.entry == slot.entry,
    ]
