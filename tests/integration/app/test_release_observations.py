"""What a release records of a first answer: what it was like, whatever the protocol, and however it ends."""

import asyncio
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import text, update

from learnloop_service.app.db.tables import Release, ReleaseObservation, ReleaseUnit
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.errors import ServiceError
from learnloop_service.app.gateway.chunks import Chunk
from learnloop_service.app.gateway.observed import ObservedExchange
from learnloop_service.app.gateway.upstream import ServerAway
from learnloop_service.app.instruments import REGISTRY
from learnloop_service.app.releases.split import Requester, Split
from tests.conditions import answered, until
from tests.integration.app.keyed import bearer
from tests.integration.app.model_stage import ModelStage
from tests.integration.app.release_traffic import HASHER, QUESTION, TALK, promoted, release_of, rows, stage, user_of
from tests.openai_clients import MESSAGES, SEARCH

__all__ = ["promoted", "stage"]

_FUNCTION = SEARCH["function"]
_CUT = 12
"""Tokens after which a call of the model is cut."""
_PROTOCOLS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": MESSAGES, "tools": [SEARCH], "max_tokens": _CUT},
    "responses": {"input": MESSAGES, "tools": [{"type": "function", **_FUNCTION}], "max_output_tokens": _CUT},
    "messages": {
        "system": MESSAGES[0]["content"],
        "messages": MESSAGES[1:],
        "tools": [
            {
                "name": _FUNCTION["name"],
                "description": _FUNCTION["description"],
                "input_schema": _FUNCTION["parameters"],
            }
        ],
        "max_tokens": _CUT,
    },
}


_NUMBERS = {
    "type": "object",
    "properties": {"numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 400}},
    "required": ["numbers"],
    "additionalProperties": False,
}
_LONG: dict[str, dict[str, Any]] = {
    "chat/completions": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "numbers", "schema": _NUMBERS}}
    },
    "responses": {"text": {"format": {"type": "json_schema", "name": "numbers", "schema": _NUMBERS}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": _NUMBERS}}},
}
"""Makes the model's reply long. Without it the reply is a random draw that can end after a few tokens."""


def _named(protocol: str, user: str) -> dict[str, Any]:
    return {"metadata": {"user_id": user}} if protocol == "messages" else {"user": user}


@pytest.mark.parametrize("protocol", _PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_malformed_call_is_seen_in_every_protocol(stage: ModelStage, protocol: str, stream: bool) -> None:
    await release_of(stage)
    body = {"model": "mail/live", "stream": stream, "temperature": 0, **_PROTOCOLS[protocol]}
    without_tools: dict[str, Any] = {"tools": []}
    for arm_fields in (_named(protocol, user_of(Arm.STABLE)), without_tools | _named(protocol, user_of(Arm.CANDIDATE))):
        reply = await stage.service.client.post(f"/v1/{protocol}", json=body | arm_fields)
        assert reply.status_code == 200, reply.text
    observed = {observation.arm: observation.values for observation in await rows(stage, ReleaseObservation)}
    malformed = {arm: (values["error"], values["malformed"]) for arm, values in observed.items()}
    assert malformed == {Arm.STABLE: (0.0, 1.0), Arm.CANDIDATE: (0.0, 0.0)}
    assert all(0 < values["cost"] < 1 for values in observed.values())


@asynccontextmanager
async def _frozen(stage: ModelStage) -> AsyncIterator[None]:
    """The engine takes requests and answers nothing."""
    stage.engine.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        stage.engine.send_signal(signal.SIGCONT)


def _met() -> float:
    """How many requests met the candidate."""
    return REGISTRY.get_sample_value("learnloop_release_exposures_total", {"arm": Arm.CANDIDATE}) or 0.0


@pytest.mark.parametrize("protocol", _PROTOCOLS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_a_candidate_that_hangs_has_met_an_error(
    stage: ModelStage, protocol: str, stream: bool
) -> None:
    await release_of(stage)
    body = {"model": "mail/live", "stream": stream, **_PROTOCOLS[protocol], **_named(protocol, user_of(Arm.CANDIDATE))}
    before = _met()
    async with _frozen(stage):
        waiting = asyncio.create_task(stage.service.client.post(f"/v1/{protocol}", json=body))
        await until(lambda: _met() > before, 10)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        [observation] = await answered(lambda: rows(stage, ReleaseObservation), bool, 10)
    assert (observation.arm, observation.values["error"]) == (Arm.CANDIDATE, 1.0)
    [met] = await rows(stage, ReleaseUnit)
    assert (met.arm, met.unit) == (Arm.CANDIDATE, observation.unit)


@pytest.mark.parametrize("protocol", _PROTOCOLS)
async def test_a_client_that_leaves_in_the_middle_of_a_stream_has_met_an_error(
    stage: ModelStage, protocol: str
) -> None:
    await release_of(stage)
    without_tools = {name: value for name, value in _PROTOCOLS[protocol].items() if name != "tools"}
    long = {"max_output_tokens" if protocol == "responses" else "max_tokens": 3_000, **_LONG[protocol]}
    body = {"model": "mail/live", "stream": True, **without_tools, **long}
    async with AsyncExitStack() as stack:
        request = stage.service.client.stream(
            "POST", f"/v1/{protocol}", json=body | _named(protocol, user_of(Arm.CANDIDATE))
        )
        async with request as reply:
            lines = reply.aiter_lines()
            assert await anext(lines)
            await stack.enter_async_context(_frozen(stage))
        [observation] = await answered(lambda: rows(stage, ReleaseObservation), bool, 10)
    assert (observation.arm, observation.values["error"]) == (Arm.CANDIDATE, 1.0)


async def test_a_client_that_leaves_while_its_answer_is_recorded_is_observed(stage: ModelStage) -> None:
    await release_of(stage)
    body = {"model": "mail/live", **TALK, "user": user_of(Arm.CANDIDATE)}
    database = stage.service.database

    async def statements_that_wait() -> set[Any]:
        of_us = "datname = current_database() AND wait_event_type = 'Lock'"
        async with database() as tx:
            return set(await tx.execute(text(f"SELECT pid, query_start FROM pg_stat_activity WHERE {of_us}")))

    async with database.begin() as tx:
        await tx.execute(text("LOCK TABLE release_observation IN SHARE ROW EXCLUSIVE MODE"))
        waiting = asyncio.create_task(stage.service.client.post("/v1/chat/completions", json=body))
        recording = await answered(statements_that_wait, bool, 10)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await answered(statements_that_wait, lambda now: now.isdisjoint(recording), 10)
    [observation] = await answered(lambda: rows(stage, ReleaseObservation), bool, 10)
    assert observation.arm == Arm.CANDIDATE


async def test_the_arm_is_recorded_before_the_first_message_of_a_streamed_answer(stage: ModelStage) -> None:
    await release_of(stage)
    body = {"model": "mail/live", "user": user_of(Arm.CANDIDATE), **QUESTION}
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_frozen(stage))
        request = stage.service.client.stream("POST", "/ask", json=body, headers={"accept": "text/event-stream"})
        reply = await stack.enter_async_context(request)
        lines = reply.aiter_lines()
        assert (await anext(lines)) == "event: message"
        [met] = await rows(stage, ReleaseUnit)
        assert (met.arm, await rows(stage, ReleaseObservation)) == (Arm.CANDIDATE, [])
    # The client left before the answer.
    [observation] = await answered(lambda: rows(stage, ReleaseObservation), bool, 10)
    assert (observation.arm, observation.values["error"]) == (Arm.CANDIDATE, 1.0)


class _Broken(ServiceError):
    status = 400
    title = "Not to be answered"


class _Busy(ServiceError):
    status = 429
    title = "Not now"


class _Exchange:
    """An exchange whose reply begins, and then ends in that way."""

    headers: Mapping[str, str] = {}

    def __init__(self, end: BaseException | None) -> None:
        self._end = end

    async def completion(self) -> dict[str, Any]:
        assert self._end is not None
        raise self._end

    async def chunks(self) -> AsyncGenerator[Chunk]:
        for _ in range(2):
            yield {"choices": [{"index": 0, "delta": {"content": "so"}, "finish_reason": None}]}
        if self._end is not None:
            raise self._end

    async def finish(self, *, delivered: bool) -> None:
        pass


@pytest.mark.parametrize(
    ("end", "errors"),
    [
        (None, [1.0]),
        (ServerAway("away"), [1.0]),
        (RuntimeError("a bug"), [1.0]),
        (_Busy("no"), [1.0]),
        (_Broken("no"), []),
    ],
    ids=["too soon", "server away", "unexpected", "busy", "refused"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_however_a_reply_breaks_off_it_is_observed(
    stage: ModelStage, end: BaseException | None, errors: list[float], stream: bool
) -> None:
    release_id = await release_of(stage)
    async with stage.service.database() as tx:
        split = Split.of(await tx.get_one(Release, release_id))
    exposure = split.exposure(Requester(HASHER.hash_of(user_of(Arm.CANDIDATE))))
    exchange: Any = _Exchange(end)
    observed = ObservedExchange(exchange, stage.service.database, exposure)
    if stream:
        with suppress(ServiceError, RuntimeError):
            async for _ in observed.chunks():
                pass
    elif end is not None:
        with suppress(ServiceError, RuntimeError):
            await observed.completion()
    else:
        return
    assert [observation.values["error"] for observation in await rows(stage, ReleaseObservation)] == errors


async def test_an_answer_in_a_session_counts_for_the_stage_in_which_it_was_opened(stage: ModelStage) -> None:
    release_id = await release_of(stage, share=0.05)
    early = [user_of(Arm.STABLE, share=0.05, is_enrolled=False), user_of(Arm.CANDIDATE, share=0.05)]
    sessions = {user: await _opened(stage, user) for user in early}
    async with stage.service.database.begin() as tx:
        await tx.execute(update(Release).where(Release.id == release_id).values(stage=1, share=0.2))
    for session in sessions.values():
        await _talk(stage, session)
    observed = {
        observation.unit: (observation.stage, observation.probability)
        for observation in await rows(stage, ReleaseObservation)
    }
    assert observed == {HASHER.hash_of(user): (0, 0.05) for user in early}


async def test_after_a_later_stages_answer_an_earlier_one_is_not_counted(stage: ModelStage) -> None:
    release_id = await release_of(stage, share=0.05)
    user = user_of(Arm.STABLE, share=0.05, is_enrolled=False)
    session = await _opened(stage, user)
    async with stage.service.database.begin() as tx:
        await tx.execute(update(Release).where(Release.id == release_id).values(stage=1, share=0.2))
    reply = await stage.service.client.post("/ask", json={"model": "mail/live", "user": user, **QUESTION})
    assert reply.status_code == 200, reply.text
    await _talk(stage, session)
    [observation] = await rows(stage, ReleaseObservation)
    assert (observation.stage, observation.probability) == (1, 0.2)


async def _opened(stage: ModelStage, user: str) -> dict[str, Any]:
    opened = await stage.service.client.post("/sessions", json={"model": "mail/live", "user": user})
    session: dict[str, Any] = opened.raise_for_status().json()
    return session


async def _talk(stage: ModelStage, session: dict[str, Any]) -> None:
    path = f"/sessions/{session['id']}/v1/chat/completions"
    reply = await stage.service.client.post(path, json={"model": "any", **TALK}, headers=bearer(session["api_key"]))
    assert reply.status_code == 200, reply.text
