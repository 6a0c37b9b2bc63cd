"""The engine's HTTP application: routes, API key check and error responses."""

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Match, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from learnloop_service.training.engine.computing import Computing
from learnloop_service.training.engine.http.base_checks import BaseChecks
from learnloop_service.training.engine.http.chat import ChatCompletions
from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.engine.http.errors import FORESEEN, ApiError, api_error, read_body
from learnloop_service.training.engine.http.jobs import Jobs
from learnloop_service.training.engine.http.responses.responses import Responses
from learnloop_service.training.engine.http.sampled_turns import SampledTurns
from learnloop_service.training.engine.http.training_api import TrainingApi
from learnloop_service.training.engine.http.training_data import TrainingData
from learnloop_service.training.engine.http.underway import Underway
from learnloop_service.training.engine.registry.model_record import Target, UnknownModel
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.protocol.meant_path import meant_path
from learnloop_service.training.protocol.responses.request import ResponsesRequest

Body = TypeVar("Body", bound=BaseModel)
_STARTED = time.monotonic()
log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 256 << 20
"""Maximum size of a request body. A training job carries all trajectories of an iteration."""
MAX_CHAT_BYTES = 8 << 20
"""Maximum size of one conversation: a million tokens of text."""
MAX_CHAT_VALUES = 50_000
"""Maximum number of JSON values of one conversation, enough for more than 10,000 messages. Checking them takes about 50
ms on the event loop."""


def create_app(
    registry: Registry,
    compute: Computing,
    tokenizer: Callable[[Target], ChatTokenizer],
    *,
    data_dir: Path,
    api_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    training_data_hosts: Collection[str] = (),
) -> ASGIApp:
    """Create the application for the models of `registry`, which `compute` samples and trains.

    Its lifespan starts and closes `compute`. Supervised jobs can fetch their data from `training_data_hosts`; see
    TrainingData.
    """
    turns, underway = SampledTurns(), Underway()
    checks = BaseChecks(registry.bases)
    chat = _ChatApi(ChatCompletions(registry, compute, tokenizer, turns, checks), min(max_body_bytes, MAX_CHAT_BYTES))
    models = _ModelsApi(registry)
    data = TrainingData(data_dir, max_body_bytes, frozenset(host.lower() for host in training_data_hosts))
    training = TrainingApi(registry, compute, tokenizer, Jobs(compute), turns, data, checks, max_body_bytes)
    app = Starlette(
        routes=[
            Route("/health", partial(_health, compute)),
            Route("/tokenize", chat.tokenize, methods=["POST"]),
            Route("/v1/models", models.all),
            Route("/v1/models/{name:path}", models.one),
            Route("/v1/chat/completions", chat.completions, methods=["POST"]),
            Route("/v1/responses", chat.create_response, methods=["POST"]),
            underway.route(),
            Mount("/v1/preview", routes=training.routes()),
        ],
        exception_handlers={
            HTTPException: _http_error,
            ClientDisconnect: _client_gone,
            Exception: _unknown_error,
            **dict.fromkeys(FORESEEN, _known_error),
        },
        lifespan=partial(_lifespan, compute),
    )
    noted = underway.noting(app)
    return noted if api_key is None else _RequireApiKey(noted, api_key)


@asynccontextmanager
async def _lifespan(compute: Computing, _: Starlette) -> AsyncIterator[None]:
    compute.start()
    try:
        yield
    finally:
        await compute.close()


async def _health(compute: Computing, _: Request) -> Response:
    reproducibility = compute.reproducibility
    checked = {
        "reproducible": reproducibility and reproducibility.reproducible,
        "reason": reproducibility.reason if reproducibility else "No model has been loaded yet.",
    }
    figures = {**asdict(compute.sampling), "train_steps": compute.train_steps}
    uptime = time.monotonic() - _STARTED
    status = {
        "status": "ok",
        "uptime_s": uptime,
        "busy_seconds": asdict(compute.busy_seconds),
        "figures": figures,
        **checked,
    }
    return JSONResponse({**status, **compute.details})


class _ChatApi:
    """OpenAI's chat completions and responses, and vLLM's tokenization of a chat prompt."""

    def __init__(self, chat: ChatCompletions, max_bytes: int) -> None:
        self._chat = chat
        self._responses = Responses(chat)
        self._max_bytes = max_bytes

    async def completions(self, request: Request) -> Response:
        body = await self._read(request, EngineChatRequest)
        if body.stream:
            return _event_stream(await self._chat.stream(body))
        return await _cancel_on_disconnect(request, asyncio.create_task(self._chat.complete(body)))

    async def tokenize(self, request: Request) -> Response:
        return JSONResponse(await self._chat.tokenize(await self._read(request, EngineChatRequest)))

    async def create_response(self, request: Request) -> Response:
        body = await self._read(request, ResponsesRequest)
        scope = request.headers.get("openai-project", "")
        if body.stream:
            return _event_stream(await self._responses.stream(body, scope))
        return await _cancel_on_disconnect(request, asyncio.create_task(self._responses.create(body, scope)))

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        return await read_body(request, kind, self._max_bytes, max_values=MAX_CHAT_VALUES)


class _ModelsApi:
    """OpenAI's list of models that can be sampled."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def all(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": await asyncio.to_thread(_models, self._registry)})

    async def one(self, request: Request) -> Response:
        name = request.path_params["name"]
        for model in await asyncio.to_thread(_models, self._registry):
            if model["id"] == name:
                return JSONResponse(model)
        raise UnknownModel(f"no model {name!r}")


class _RequireApiKey:
    """Refuses requests without the API key, except health checks."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            authorization = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(authorization, self._expected):
                error = ApiError(401, "a valid key is needed: Authorization: Bearer KEY", code="invalid_api_key")
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _models(registry: Registry) -> list[dict[str, Any]]:
    """Return the models that can be sampled: base models, and trained models with the step that their plain name refers
    to."""
    registry.refresh()
    bases = [{"id": name, "object": "model", "created": 0, "owned_by": "base"} for name in registry.base_models]
    trained = []
    for record in registry.models():
        with suppress(UnknownModel):  # it has no complete checkpoint
            steps = [checkpoint.step for checkpoint in registry.steps(record.id)]
            trained.append(
                {
                    "id": record.full_name,
                    "object": "model",
                    "created": int(datetime.fromisoformat(record.created).timestamp()),
                    "owned_by": record.entity,
                    "base_model": record.base_model,
                    "step": steps[-1],
                    "steps": steps,
                }
            )
    return bases + trained


def _event_stream(events: AsyncIterator[str]) -> Response:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


async def _cancel_on_disconnect(request: Request, work: asyncio.Task[dict[str, Any]]) -> Response:
    """Return the result of the work. If the client disconnects first, cancel the work, because no one reads the
    result."""
    gone = asyncio.create_task(_wait_for_disconnect(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse(await work) if work.done() else Response(status_code=499)
    finally:
        work.cancel()
        gone.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _known_error(_: Request, error: Exception) -> Response:
    return api_error(error).response()


async def _unknown_error(request: Request, error: Exception) -> Response:
    log.error("request failed", path=request.url.path, error=repr(error))
    return api_error(error).response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)

    def exists(path: str) -> bool:
        return any(route.matches({**request.scope, "path": path})[0] is not Match.NONE for route in request.app.routes)

    suggestion = meant_path(request.url.path, exists)
    message = f"{error.detail}: no such route or method" + (f"; did you mean {suggestion}?" if suggestion else "")
    return ApiError(error.status_code, message, code="not_found").response()


async def _client_gone(_: Request, error: Exception) -> Response:
    return Response(status_code=499)
