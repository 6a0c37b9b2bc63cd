"""The model of one rollout behind OpenAI's chat completions, for agents' clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from learnloop_service.environment.base import Json
from learnloop_service.training.rollout.agents.base import AgentModel

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

Complete = Callable[
    [Sequence[dict[str, Json]], Sequence[Json], Mapping[str, Json], int | None], Awaitable["ChatCompletion"]
]
"""A function from messages, tools, further parameters and the maximum number of reply tokens to the completion. Raises
Refused."""

_BASE_URL = "http://model.invalid/v1"
_KEY = "this-rollout"
_AGENT_OPTIONS = ("n", "parallel_tool_calls", "response_format", "stop", "tool_choice")
"""Parameters that an agent can set besides messages and tools. The run decides how replies are sampled."""

Result = TypeVar("Result")


class Refused(Exception):
    """A request that is answered with an error in OpenAI's form."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def body(self) -> dict[str, Json]:
        """Return the body of the error response."""
        return {"error": {"message": str(self), "type": "invalid_request_error", "param": None, "code": self.code}}


def on_loop(coroutine: Coroutine[Any, Any, Result], loop: asyncio.AbstractEventLoop) -> "Future[Result]":
    """Run a coroutine on another thread's loop. Raises httpx.ConnectError if that loop is closed."""
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError as error:
        coroutine.close()
        raise httpx.ConnectError("the rollout has ended") from error


class Gateway:
    """Answers requests to the model `model`. `complete` runs on the event loop `home`."""

    def __init__(self, model: str, complete: Complete, home: asyncio.AbstractEventLoop) -> None:
        self.model = model
        self._complete = complete
        self._home = home

    def submit(self, request: httpx.Request, content: bytes) -> "Future[httpx.Response]":
        """Return the response to a request with the body `content`. Any thread can call this."""
        return on_loop(self._response(request, content), self._home)

    async def _response(self, request: httpx.Request, content: bytes) -> httpx.Response:
        try:
            if request.method != "POST" or not request.url.path.endswith("/chat/completions"):
                raise Refused(404, "not_found", f"there is only POST /chat/completions, not {request.url.path}")
            return httpx.Response(200, json=await self._answer(content), request=request)
        except Refused as refused:
            return httpx.Response(refused.status, json=refused.body(), request=request)

    async def _answer(self, content: bytes) -> dict[str, Json]:
        body = _object(content)
        if (named := body.get("model")) != self.model:
            raise Refused(404, "model_not_found", f"the model of this rollout is {self.model!r}, not {named!r}")
        if body.get("stream"):
            raise Refused(400, "unsupported_parameter", "replies are not streamed here: leave out `stream`")
        messages, tools = body.get("messages"), body.get("tools") or []
        if not (_objects(messages) and messages and _objects(tools)):
            raise Refused(400, "invalid_value", "`messages` must be a list of objects, and so must `tools`")
        options = {name: body[name] for name in _AGENT_OPTIONS if body.get(name) is not None}
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise Refused(400, "invalid_value", "`max_tokens` must be a positive whole number")
        completion = await self._complete(messages, tools, options, limit)
        hidden = {"token_ids"} if body.get("logprobs") else {"token_ids", "logprobs"}
        return completion.model_dump(mode="json", exclude={"prompt_token_ids": True, "choices": {"__all__": hidden}})


def _object(content: bytes) -> dict[str, Json]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "invalid_value", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(400, "invalid_value", "the body must be a JSON object")
    return body


def _objects(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(element, dict) for element in value)


class _AsyncTransport(httpx.AsyncBaseTransport):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await asyncio.wrap_future(self._gateway.submit(request, await request.aread()))


class _Transport(httpx.BaseTransport):
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self._gateway.submit(request, request.read()).result()


@asynccontextmanager
async def agent_model(gateway: Gateway) -> AsyncIterator[AgentModel]:
    """Open the model behind a gateway, in the form that agents receive."""
    async with httpx.AsyncClient(transport=_AsyncTransport(gateway), trust_env=False) as client:
        with httpx.Client(transport=_Transport(gateway), trust_env=False) as sync_client:
            yield AgentModel(_BASE_URL, _KEY, gateway.model, client, sync_client)
