"""Answers that users really got, to learn from: which sessions are used, their frozen outcomes, and their tokens.

Which sessions are used depends only on what was known before they were answered: leaving out what failed would make
failures cost nothing. A frozen session is a row without its text and tokens. These are read from its calls when their
step comes, if the session is still there, still has consent, and has the same tokens.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from statistics import fmean
from typing import Any, NamedTuple, Self, TypeVar

import orjson
from pydantic import Field, field_validator, model_validator
from sqlalchemy import Select, case, func, not_, or_, select

from learnloop_service.app.agent_sessions.consent import consented_sessions, refused_sessions
from learnloop_service.app.agent_sessions.consented import SESSION, SessionFilter, tasks
from learnloop_service.app.agent_sessions.records import KeptRequest, answered_call, unpack_answer, unpack_request
from learnloop_service.app.agent_sessions.task_draw import draw_of_users, split_of
from learnloop_service.app.datasets.documents import NewDocument
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, SessionCall
from learnloop_service.app.domain.schedule_state import DueReason
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.feedback.forecast import cross_fitted, r_squared, session_features
from learnloop_service.app.feedback.outcomes import THUMBS_ONLY, outcome_of, session_events
from learnloop_service.app.schemas.releases import OutcomeRule, outcome_json
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.backends.registry import engine_backend
from learnloop_service.training.loop.served_answers import AnswerRow
from learnloop_service.training.rollout.chat import TOKEN_ID
from learnloop_service.training.rollout.model_calls import AnsweredCall

T = TypeVar("T")
LEAST_ANSWERS, LEAST_USERS, LEAST_AT_END = 300, 100, 10
_BATCH = 200
"""Number of sessions whose calls are in memory at the same time."""
_SETTLED = timedelta(seconds=30)
"""How long after its end a window is closed: an event that was received in time can still be about to be committed."""


class AnswerSource(SessionFilter):
    """The served answers that a run learns from."""

    model: str = Field(min_length=1, max_length=300)
    """The promoted name that was asked."""
    outcome: OutcomeRule
    """What the outcome of a session is. Silence counts 0."""
    window_hours: float = Field(default=168, gt=0, le=24 * 90)
    """How long after it was opened the outcome of a session is frozen."""
    per_user: int = Field(default=3, ge=1, le=100)
    """Maximum number of sessions of a user."""
    limit: int = Field(default=10_000, ge=LEAST_ANSWERS, le=10_000)
    """Maximum number of sessions. The newest ones are used."""

    @model_validator(mode="after")
    def _is_blind(self) -> Self:
        if self.selects:
            raise ValueError(
                "leave out rewarded, reward_below and feedback: answers are not chosen by how they went, because what "
                "is left out would cost nothing"
            )
        return self

    @field_validator("outcome", mode="before")
    @classmethod
    def _silence_is_worst(cls, rule: Any) -> Any:
        opinions = rule.get("feedback") if isinstance(rule, dict) else None
        if not isinstance(opinions, dict):
            return rule
        if opinions.get("none"):
            raise ValueError("feedback.none must be 0: if silence counted, asking back would pay")
        return {**rule, "feedback": {**opinions, "none": 0.0}}


class WhyLeftOut(StrEnum):
    """Why a session is not used, as the end of a phrase that begins with a number."""

    REFUSED = "without consent"
    NO_USER = "without a user"
    ELSEWHERE = "of another backend"
    OPEN = "with an open window"
    OTHER_BASE = "of another base model"
    UNKNOWN = "without exact tokens"
    GREEDY = "at temperature 0"
    TEMPERED = "at another temperature"
    CUT = "with top_p, top_k, min_p or a grammar"
    MANY = "of users with enough others"


class TooFewAnswers(InvalidRequest):
    """Too few served answers can be used, or nearly all of them have the same outcome."""

    def __init__(self, reason: DueReason, message: str) -> None:
        super().__init__(("body", "source", "sessions"), message)
        self.reason = reason


class SessionTokens(NamedTuple):
    """The exact tokens of a session: the hash of all of them, the calls that were sampled freely, and the number of
    tokens in their replies. Other calls are context."""

    sha256: str
    free: Sequence[tuple[KeptRequest, Mapping[str, Json]]]
    tokens: int


class FrozenAnswers(NamedTuple):
    """Rows of the sessions that a run learns from, the hash of the user by their ids, facts for its request, and the
    document to store."""

    rows: Sequence[dict[str, Json]]
    users: Mapping[str, str]
    facts: Mapping[str, Json]
    document: NewDocument | None = None

    @property
    def note(self) -> str:
        """What is learned from, and what is not and why."""
        left_out: Mapping[str, int] = self.facts["left_out"]
        total, users = len(self.rows) + sum(left_out.values()), len(set(self.users.values()))
        causes = [f"{number:,} of them {cause}" for cause, number in sorted(left_out.items(), key=lambda one: -one[1])]
        explore = ": see explore" if {WhyLeftOut.GREEDY, WhyLeftOut.TEMPERED} & left_out.keys() else ""
        return (
            f"{counted(len(self.rows), 'answer')} to {counted(users, 'user')} whose windows are closed; outcome "
            f"{self.facts['outcome']:.2f}, expected {self.facts['expected']:.2f} (R2 {self.facts['r_squared']:.2f}); "
            f"{', '.join([counted(total, 'session'), *causes])}{explore}."
            f"{' ' + THUMBS_ONLY if 'feedback' in self.facts['source']['outcome'] else ''}"
        )

    def require_enough(self) -> None:
        """Raise TooFewAnswers if these teach too little."""
        outcomes, mean = [row["outcome"] for row in self.rows], self.facts["outcome"]
        if len(outcomes) < LEAST_ANSWERS or len(set(self.users.values())) < LEAST_USERS:
            needed = f"{LEAST_ANSWERS} answers to {LEAST_USERS} users are needed, and there are {self.note}"
            raise TooFewAnswers(DueReason.TOO_FEW_ANSWERS, needed)
        if min(sum(one < mean for one in outcomes), sum(one > mean for one in outcomes)) < LEAST_AT_END:
            needed = f"{LEAST_AT_END} answers above and below the mean are needed, and there are {self.note}"
            raise TooFewAnswers(DueReason.OUTCOME_CONSTANT, needed)


async def freeze(
    database: Database,
    project: str,
    source: AnswerSource,
    seed: int,
    iterations: int,
    has_base: Callable[[str], Awaitable[bool]],
    at: datetime | None = None,
) -> FrozenAnswers:
    """Choose the sessions that can be used at a time (None: now), and freeze their outcomes. `has_base` says whether a
    checkpoint has the base model of the one that the run starts from."""
    window, rule = timedelta(hours=source.window_hours), outcome_json(source.outcome)
    async with database() as tx:
        at = at or (await tx.execute(select(func.now()))).scalar_one()
        sessions = {session.session: session for session in await tx.execute(_sessions(project, source, at))}
    bases = {name: await has_base(name) for name in sorted({session.model for session in sessions.values()})}
    causes = {id: one.cause or (None if bases[one.model] else WhyLeftOut.OTHER_BASE) for id, one in sessions.items()}
    tokens = await _read(database, [id for id, cause in causes.items() if cause is None], _without_calls)
    causes |= {id: why for id, why in tokens.items() if isinstance(why, WhyLeftOut)}
    usable = {id: sessions[id].user_hash for id, cause in causes.items() if cause is None}
    ids = sorted(draw_of_users(usable, source.per_user, f"answers:{seed}"))
    causes |= dict.fromkeys(usable.keys() - ids, WhyLeftOut.MANY)
    async with database() as tx:
        events = await session_events(tx, project, ids, window, rule)
        features = await session_features(tx, project, ids, window, rule)
    outcomes = [outcome_of(rule, events.get(id, ())) for id in ids]
    forecasts = cross_fitted([*zip((features[id] for id in ids), outcomes, strict=True)], [usable[id] for id in ids])
    rows: list[dict[str, Json]] = [
        {
            "id": sessions[id].id,
            "split": split_of(usable[id]),
            "iteration": _iteration(seed, id, iterations) if split_of(usable[id]) == "train" else 0,
            "checkpoint": sessions[id].model,
            "attempts": sessions[id].attempt,
            **{name: getattr(tokens[id], name) for name in ("sha256", "tokens")},
            "outcome": outcome,
            "forecast": forecast,
        }
        for id, outcome, forecast in zip(ids, outcomes, forecasts, strict=True)
    ]
    facts = {
        "source": source.model_dump(mode="json", exclude_unset=True) | {"outcome": rule},
        "frozen_at": at.isoformat(),
        "left_out": Counter(str(cause) for cause in causes.values() if cause is not None),
        "outcome": fmean(outcomes) if rows else 0.0,
        "expected": fmean(forecasts) if rows else 0.0,
        "r_squared": r_squared(outcomes, forecasts),
    }
    return FrozenAnswers(rows, {sessions[id].id: usable[id] for id in ids}, facts)


async def why_left_out(database: Database, session: AgentSession, source: AnswerSource, at: datetime) -> WhyLeftOut:
    """Return why a session was not among the answers that were frozen at a time."""
    query = _sessions(session.project, source, at).where(AgentSession.id == session.id)
    async with database() as tx:
        row = (await tx.execute(query)).one_or_none()
    if row is None or row.cause is not None:
        return WhyLeftOut.OPEN if row is None else WhyLeftOut(row.cause)
    tokens = (await _read(database, [session.id], _without_calls))[session.id]
    return tokens if isinstance(tokens, WhyLeftOut) else WhyLeftOut.MANY


def answer_row(row: Mapping[str, Any]) -> AnswerRow:
    """Return a stored row for the learn loop."""
    return AnswerRow(row["id"].removeprefix(f"{SESSION}."), *(row[name] for name in AnswerRow._fields[1:]))


async def read_answers(
    database: Database, project: str, rows: Sequence[AnswerRow]
) -> dict[str, list[AnsweredCall] | None]:
    """Return the calls of those sessions that are still there and still have consent; None for other tokens than were
    frozen."""
    hashes = {row.id: row.sha256 for row in rows}
    query = select(AgentSession.id).where(consented_sessions(project), AgentSession.id.in_(sorted(hashes)))
    async with database() as tx:
        ids = sorted((await tx.execute(query)).scalars())

    def answered(id: str, tokens: SessionTokens | WhyLeftOut) -> list[AnsweredCall] | None:
        if isinstance(tokens, WhyLeftOut) or tokens.sha256 != hashes[id]:
            return None
        return [answered_call(*call) for call in tokens.free]

    return await _read(database, ids, answered)


def _without_calls(_: str, tokens: SessionTokens | WhyLeftOut) -> SessionTokens | WhyLeftOut:
    return tokens if isinstance(tokens, WhyLeftOut) else tokens._replace(free=())


def _iteration(seed: int, id: str, iterations: int) -> int:
    """Return the iteration of a session, which depends on no other session: one that vanishes moves none."""
    return 1 + int.from_bytes(sha256(f"iteration:{seed}:{id}".encode()).digest()[:8]) % iterations


def _sessions(project: str, source: AnswerSource, at: datetime) -> Select[Any]:
    """Select the newest sessions of the name that were over at that time, each with a cause why it cannot be used, as
    far as its row says it."""
    row, consented = AgentSession, consented_sessions(project)
    cause = case(
        (not_(consented), WhyLeftOut.REFUSED),
        (row.user_hash.is_(None), WhyLeftOut.NO_USER),
        (row.backend != engine_backend(), WhyLeftOut.ELSEWHERE),
        (row.opened_at > at - timedelta(hours=source.window_hours) - _SETTLED, WhyLeftOut.OPEN),
    ).label("cause")
    more = (row.id.label("session"), row.model, row.attempt, cause)
    query = tasks(project, source, or_(consented, refused_sessions(project)), SESSION, *more)
    return query.where(row.ended_at <= at, row.calls > 0).order_by(row.id.desc()).limit(source.limit)


async def _read(
    database: Database, ids: Sequence[str], take: Callable[[str, SessionTokens | WhyLeftOut], T]
) -> dict[str, T]:
    """Return by session what `take` takes of its tokens, on a thread, or of why they cannot be trained on."""
    taken, row = dict[str, T](), SessionCall
    for start in range(0, len(ids), _BATCH):
        calls = {id: list[tuple[bytes, bytes]]() for id in ids[start : start + _BATCH]}
        which = (row.session_id.in_(calls), row.answer.is_not(None))
        query = select(row.session_id, row.request, row.answer).where(*which).order_by(row.session_id, row.number)
        async with database() as tx:
            for id, request, answer in await tx.execute(query):
                calls[id].append((request, answer or b""))
        for id, of_session in calls.items():
            taken[id] = await asyncio.to_thread(lambda id, calls: take(id, _tokens_of(calls)), id, of_session)
    return taken


def _tokens_of(calls: Sequence[tuple[bytes, bytes]]) -> SessionTokens | WhyLeftOut:
    """Return the exact tokens of the answered calls of all attempts, or why there is nothing to train on."""
    free, sampled, digest, cut = list[tuple[KeptRequest, Mapping[str, Json]]](), 0, sha256(), WhyLeftOut.UNKNOWN
    for packed_request, packed_answer in calls:
        request, completion = unpack_request(packed_request), unpack_answer(packed_answer)
        replies = [(choice.get("logprobs") or {}).get("content") or [] for choice in completion["choices"]]
        tokens = [[(token["token"], token["logprob"]) for token in reply] for reply in replies]
        exact = all(tokens) and all(text.startswith(TOKEN_ID) for reply in tokens for text, _ in reply)
        if not exact or (prompt := completion.get("prompt_token_ids")) is None:
            return WhyLeftOut.UNKNOWN
        digest.update(orjson.dumps([prompt, tokens]))
        if (why := _why_cut(request)) is not None:
            cut = why
            continue
        free.append((request, completion))
        sampled += sum(map(len, tokens))
    return SessionTokens(digest.hexdigest(), free, sampled) if free else cut


def _why_cut(request: KeptRequest) -> WhyLeftOut | None:
    """Return why a reply was not sampled from the model's own distribution; None if it was."""
    parameters = request.parameters
    if (temperature := parameters.get("temperature", 1)) != 1:
        return WhyLeftOut.TEMPERED if temperature else WhyLeftOut.GREEDY
    is_cut = parameters.get("top_p", 1) != 1 or parameters.get("top_k", 0) not in (0, -1) or parameters.get("min_p", 0)
    form = (parameters.get("response_format") or {}).get("type", "text")
    has_grammar = form != "text" or parameters.get("tool_choice", "auto") not in ("auto", "none")
    is_strict = any((tool.get("function") or {}).get("strict") for tool in request.tools)
    return WhyLeftOut.CUT if is_cut or has_grammar or is_strict else None
