"""Subjects of feedback: trajectories, sessions, and users of promoted names."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.db.tables import AgentSession, Promotion, Reflection, Run, Trajectory
from learnloop_service.app.errors import InvalidRequest, NotFound, existing
from learnloop_service.app.schemas.feedback import FeedbackEvent
from learnloop_service.app.security.user_hash import UserHasher
from learnloop_service.judges.feedback import ONLINE
from learnloop_service.training.protocol.model_name import ModelName

SUBJECT = ("trajectory_id", "session_id", "user_hash", "asked_as")
AGAINST = ("against_id", "against_session_id")
_NO_SUBJECT: dict[str, Any] = dict.fromkeys((*SUBJECT, *AGAINST, "run_id"))
_Sees = Callable[[str | None], bool]


@dataclass(frozen=True, slots=True)
class Subjects:
    """The subjects of a request's events, as far as the sender can see them."""

    emails: "_Emails"
    worked: Mapping[str, "_Worked"]
    users: "_PromotedNames"

    @classmethod
    async def of(cls, tx: AsyncSession, events: Sequence[FeedbackEvent], sees: _Sees, users: UserHasher) -> "Subjects":
        """Find the subjects of the events, as far as the sender can see them."""
        return cls(
            await _Emails.of(tx, events, sees),
            await _worked(tx, events, sees),
            await _PromotedNames.of(tx, events, sees, users),
        )

    def columns(self, event: FeedbackEvent) -> dict[str, Any]:
        """Return the columns with the event's subject. Raises NotFound, InvalidRequest."""
        if event.session_id is not None:
            return _session_subject(event, event.session_id, self.worked)
        if event.user is not None and event.model is not None:
            return self.users.subject(event.user, event.model)
        return self.emails.subject(event)


@dataclass(frozen=True, slots=True)
class _Email:
    project: str
    run_id: str | None
    is_email: bool
    """Whether its environment writes emails."""
    written: bool


@dataclass(frozen=True, slots=True)
class _Emails:
    """The trajectories that events refer to."""

    samples: Mapping[tuple[str, int], str]
    """Trajectory ids of sample emails, by run and iteration."""
    emails: Mapping[str, _Email]

    @classmethod
    async def of(cls, tx: AsyncSession, events: Sequence[FeedbackEvent], sees: _Sees) -> "_Emails":
        iterations = {(event.run_id, event.iteration) for event in events if event.run_id is not None}
        samples = await _sample_ids(tx, iterations) if iterations else {}
        ids = {*samples.values(), *(id for event in events for id in (event.trajectory_id, event.over) if id)}
        return cls(samples, await _visible_emails(tx, ids, sees))

    def subject(self, event: FeedbackEvent) -> dict[str, Any]:
        """Return the columns with the event's subject. Raises NotFound, InvalidRequest."""
        id = event.trajectory_id or self.samples.get((event.run_id or "", event.iteration or 0))
        if id is None or (event.run_id is not None and id not in self.emails):
            raise NotFound(f"Run {event.run_id!r} has no sample email after iteration {event.iteration}.")
        self._check(id, event.type)
        if event.over is not None:
            self._check(event.over, event.type)
        if event.over == id:
            raise InvalidRequest(("body", "over"), "An email cannot be preferred over itself.")
        email = self.emails[id]
        return _NO_SUBJECT | {
            "project": email.project,
            "run_id": email.run_id,
            "trajectory_id": id,
            "against_id": event.over,
        }

    def _check(self, id: str, type: str) -> None:
        """Check that an event of that type can be about the trajectory. Raises NotFound, InvalidRequest."""
        email = existing(self.emails.get(id), "trajectory", id)
        if not email.written and (email.is_email or type in ONLINE):
            raise InvalidRequest(
                ("body",), f"Trajectory {id!r} has no email, so it cannot have feedback of type {type!r}."
            )


async def _sample_ids(tx: AsyncSession, iterations: Iterable[tuple[str, int | None]]) -> dict[tuple[str, int], str]:
    key = tuple_(Reflection.run_id, Reflection.iteration)
    query = select(Reflection.run_id, Reflection.iteration, Reflection.trajectory_id).where(key.in_(iterations))
    return {(run_id, iteration): id for run_id, iteration, id in await tx.execute(query)}


async def _visible_emails(tx: AsyncSession, ids: Iterable[str], sees: _Sees) -> dict[str, _Email]:
    """Return the trajectories with these ids that the sender can see, locked against deletion until the transaction
    ends."""
    email, project = Trajectory.outcome["email"], func.coalesce(Run.model_project, Trajectory.project)
    query = (
        select(Trajectory.id, project, Trajectory.run_id, email.is_not(None), func.jsonb_typeof(email) == "object")
        .outerjoin(Run, Run.id == Trajectory.run_id)
        .where(Trajectory.id.in_(ids))
        .with_for_update(read=True, key_share=True, of=Trajectory)
    )
    rows = await tx.execute(query)
    return {
        id: _Email(of or "", run_id, is_email, bool(written)) for id, of, run_id, is_email, written in rows if sees(of)
    }


@dataclass(frozen=True, slots=True)
class _Worked:
    """A session that an event refers to."""

    project: str
    in_production: bool
    """Whether it is not a rollout of a run or an evaluation."""


async def _worked(tx: AsyncSession, events: Sequence[FeedbackEvent], sees: _Sees) -> dict[str, _Worked]:
    """Return the sessions that the events refer to and the sender can see, locked against deletion until the
    transaction ends."""
    of_sessions = [event for event in events if event.session_id is not None]
    if not of_sessions:
        return {}
    query = (
        select(AgentSession.id, AgentSession.project, AgentSession.entry.is_(None))
        .where(AgentSession.id.in_({id for event in of_sessions for id in (event.session_id, event.over) if id}))
        .with_for_update(read=True, key_share=True)
    )
    return {id: _Worked(of, alone) for id, of, alone in await tx.execute(query) if sees(of)}


def _session_subject(event: FeedbackEvent, session_id: str, worked: Mapping[str, _Worked]) -> dict[str, Any]:
    """Return the columns with the event's subject. Raises NotFound, InvalidRequest."""
    if event.type in ONLINE:
        raise InvalidRequest(("body", "type"), f"A session has no email, so it cannot have feedback {event.type!r}.")
    for id in (session_id, event.over):
        if id is not None and id not in worked:
            raise NotFound(f"There is no session {id!r}.")
        if id is not None and not worked[id].in_production:
            raise InvalidRequest(
                ("body",), f"Session {id!r} is a rollout of a run or an evaluation: give feedback on its trajectory."
            )
    if event.over == session_id:
        raise InvalidRequest(("body", "over"), "A session cannot be preferred over itself.")
    if event.over is not None and worked[event.over].project != worked[session_id].project:
        raise InvalidRequest(("body", "over"), "The two sessions are of different projects.")
    columns = {"project": worked[session_id].project, "session_id": session_id, "against_session_id": event.over}
    return _NO_SUBJECT | columns


@dataclass(frozen=True, slots=True)
class _PromotedNames:
    """The promoted names whose users events refer to."""

    names: Collection[str]
    users: UserHasher

    @classmethod
    async def of(
        cls, tx: AsyncSession, events: Sequence[FeedbackEvent], sees: _Sees, users: UserHasher
    ) -> "_PromotedNames":
        names = {ModelName.parse(event.model) for event in events if event.model is not None}
        if not names:
            return cls((), users)
        keys = [(name.project, name.name) for name in names if sees(name.project)]
        query = select(Promotion.project, Promotion.name).where(tuple_(Promotion.project, Promotion.name).in_(keys))
        promoted = await tx.execute(query.distinct())
        return cls({str(ModelName(project, name)) for project, name in promoted}, users)

    def subject(self, user: str, model: str) -> dict[str, Any]:
        """Return the columns with the event's subject. Raises NotFound."""
        if model not in self.names:
            raise NotFound(f"No checkpoint was ever promoted to {model!r}.")
        project = ModelName.parse(model).project
        return _NO_SUBJECT | {"project": project, "user_hash": self.users.hash_of(user), "asked_as": model}
