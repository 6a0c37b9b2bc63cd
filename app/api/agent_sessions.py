"""Sessions: an agent that owns its loop works with a model, and what it did is used to train the model."""

from datetime import timedelta
from typing import Annotated

from fastapi import Depends, Query
from ulid import ULID

from learnloop.outcome import ordered
from learnloop_service.app.agent_sessions.calls import SessionCalls
from learnloop_service.app.agent_sessions.records import KeptCall
from learnloop_service.app.agent_sessions.store import AgentSessions, OpenedSession, SessionSpec, outcome_of
from learnloop_service.app.api.dependencies import (
    CurrentCaller,
    CurrentDatabase,
    CurrentService,
    CurrentSettings,
    ServiceUrl,
)
from learnloop_service.app.api.engine import CurrentEngine, CurrentModels
from learnloop_service.app.api.pages import ById, ByNumber
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.api.session_models import CurrentGateway, SessionId
from learnloop_service.app.api.users import CurrentUsers
from learnloop_service.app.datasets.documents import UnknownDocument
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession
from learnloop_service.app.domain.agent_session_state import AgentSessionState
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import Forbidden
from learnloop_service.app.feedback.session_opinions import opinions_of
from learnloop_service.app.gateway.pinning import pinned
from learnloop_service.app.operations.delete_user import UserDataDeletion
from learnloop_service.app.operations.learned_session import learned_from
from learnloop_service.app.releases.split import Requester
from learnloop_service.app.runs.stored_prompts import read_stored
from learnloop_service.app.schemas.agent_sessions import (
    AgentSessionAccess,
    AgentSessionCallOut,
    AgentSessionOpinions,
    AgentSessionOut,
    AgentSessionOutcome,
    AgentSessionRequest,
    OutcomeRequest,
    SessionPrompt,
)
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.prompts import PromptUsed
from learnloop_service.app.schemas.user_data import Consent, ConsentOut
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.rollout.agents.sessions import SessionLimits, SessionOutcome

router = keyed_router("sessions", prefix="/sessions")

State = Annotated[AgentSessionState | None, Query(description="Only sessions in this state. Default: all")]


async def _store(database: CurrentDatabase) -> AgentSessions:
    return AgentSessions(database)


async def _calls(gateway: CurrentGateway) -> SessionCalls:
    return gateway.calls


Store = Annotated[AgentSessions, Depends(_store)]
Calls = Annotated[SessionCalls, Depends(_calls)]


@router.post("", status_code=201)
async def open_agent_session(
    service_url: ServiceUrl,
    store: Store,
    caller: CurrentCaller,
    settings: CurrentSettings,
    models: CurrentModels,
    engine: CurrentEngine,
    users: CurrentUsers,
    request: AgentSessionRequest,
) -> AgentSessionAccess:
    """Open a session. Give its base URL and key to an agent in place of OpenAI's or Anthropic's.

    Every call of the model is recorded before its answer leaves. The key is shown in this response only.
    """
    named = caller.project_of(request.project)
    requester = Requester(users.hash_of(request.user), str(ULID()))
    model = await pinned(models, engine, caller, request.model, requester)
    project = named or _project_of(model.name) or settings.art_project
    spec = SessionSpec(
        project,
        model,
        timedelta(seconds=request.ttl_s),
        SessionLimits(request.limits.max_calls or settings.session_max_calls, request.limits.max_tokens),
        explicit_restart=request.restart == "explicit",
        labels=request.metadata,
        id=requester.session_id,
        user_hash=requester.user_hash,
        may_train=project in settings.train_on_projects if request.train is None else request.train,
        opener_sha256=caller.key_sha256,
    )
    prompt = await _prompt(models.database, model.prompt)
    return _access(service_url, await store.open(spec, settings.max_open_sessions), prompt)


@router.get("")
async def list_agent_sessions(
    store: Store, database: CurrentDatabase, caller: CurrentCaller, paging: ById, status: State = None
) -> Page[AgentSessionOut]:
    """List sessions, newest first."""
    rows = await store.listed(caller, state=status, before=paging.cursor, limit=paging.fetched)
    opinions = await opinions_of(database, [row.id for row in rows])
    return paging.page(rows, lambda row: _session(row, opinions.get(row.id)), lambda row: row.id)


@router.get("/{id}")
async def get_agent_session(
    store: Store, database: CurrentDatabase, caller: CurrentCaller, id: SessionId
) -> AgentSessionOut:
    """Get a session."""
    row = await store.get(caller, id)
    shown = _session(row, (await opinions_of(database, [id])).get(id))
    return shown.model_copy(update={"learned": await learned_from(database, row)})


@router.patch("/{id}")
async def change_session_consent(
    service: CurrentService, store: Store, caller: CurrentCaller, id: SessionId, request: Consent
) -> ConsentOut:
    """Withdraw the consent to train on a session, or give it. The session's own key cannot.

    Runs that learn from answers leave a withdrawn one out from their next step on.
    """
    if caller.agent is not None:
        raise Forbidden("The key of a session cannot change the consent to train on it; use an API key.")
    row = await store.get(caller, id)
    data = UserDataDeletion(service.database, service.settings.data_dir, row.user_hash or "", row.project)
    return await data.consent(AgentSession.id == id, train=request.train)


@router.get("/{id}/calls")
async def list_agent_session_calls(
    store: Store, calls: Calls, caller: CurrentCaller, id: SessionId, paging: ByNumber
) -> Page[AgentSessionCallOut]:
    """List the calls of a session, oldest first.

    With messages, answers, token ids and log-probabilities, as far as the model's server returns them.
    """
    await store.get(caller, id)
    listed_calls = await calls.listed(id, after=paging.after(), limit=paging.fetched)
    return paging.page(listed_calls, _call, lambda call: call.number)


@router.post("/{id}/restart")
async def restart_agent_session(
    service_url: ServiceUrl, store: Store, database: CurrentDatabase, caller: CurrentCaller, id: SessionId
) -> AgentSessionAccess:
    """Begin the next attempt of a session, with a new key: for an agent that died.

    Requests that an earlier attempt made get the recorded answers, so the agent continues at the turn where it died.
    Keys of earlier attempts are refused.
    """
    opened = await store.restart(caller, id)
    return _access(service_url, opened, await _prompt(database, opened.row.prompt))


@router.post("/{id}/outcome")
async def end_agent_session(
    store: Store, database: CurrentDatabase, caller: CurrentCaller, id: SessionId, request: OutcomeRequest
) -> AgentSessionOut:
    """End a session with the outcome of its current attempt. Both the session's own key and API keys can do so.

    409 if another attempt has begun: the outcome of an earlier one does not count. The same outcome again changes
    nothing.
    """
    facts = ordered(request.facts) if request.facts else None
    outcome = SessionOutcome(request.reward, request.parts, request.output, request.reason, facts)
    row = await store.end(caller, id, outcome, request.attempt)
    return _session(row, (await opinions_of(database, [id])).get(id))


def _project_of(model: str) -> str | None:
    try:
        return ModelName.parse(model).project
    except ValueError:
        return None


async def _prompt(database: Database, reference: PromptReference | None) -> SessionPrompt | None:
    """Return the prompt of a session with its texts; None also for one that was deleted with its run."""
    if reference is None:
        return None
    try:
        prompt = await read_stored(database, None, reference)
    except UnknownDocument:
        return None
    return None if prompt is None else SessionPrompt(**reference.model_dump(), parts=dict(prompt.parts))


def _access(service_url: str, opened: OpenedSession, prompt: SessionPrompt | None) -> AgentSessionAccess:
    row = opened.row
    assert opened.key is not None
    return AgentSessionAccess(
        id=row.id,
        base_url=f"{service_url}/sessions/{row.id}/v1",
        api_key=opened.key,
        attempt=row.attempt,
        expires_at=row.expires_at,
        prompt=prompt,
    )


def _session(row: AgentSession, opinions: AgentSessionOpinions | None) -> AgentSessionOut:
    outcome = outcome_of(row)
    plain = (
        *("id", "project", "step", "backend", "attempt", "calls", "prompt_tokens", "completion_tokens", "max_calls"),
        *("max_tokens", "warnings", "explored", "run_id", "iteration", "opened_at", "expires_at", "ended_at"),
    )
    return AgentSessionOut(
        **{name: getattr(row, name) for name in plain},
        status=AgentSessionState(row.state),
        model=row.asked_model,
        checkpoint=row.model,
        prompt=PromptUsed.of_reference(row.prompt),
        reward=None if outcome is None else outcome.reward,
        outcome=None if outcome is None else AgentSessionOutcome.of(outcome),
        feedback=opinions,
        restart="explicit" if row.explicit_restart else "auto",
        metadata=row.labels,
        train=row.may_train,
    )


def _call(call: KeptCall) -> AgentSessionCallOut:
    plain = ("number", "digest", "occurrence", "protocol", "used", "seed", "completion", "begun_at", "answered_at")
    return AgentSessionCallOut(
        **{name: getattr(call, name) for name in plain},
        messages=list(call.request.messages),
        tools=list(call.request.tools),
        parameters=dict(call.request.parameters),
    )
