"""Requests completions from the server of a model, whole or in chunks."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from learnloop.http_settings import proxy_of, tls
from learnloop_service.app.errors import BadGateway, InvalidRequest, ServiceError, Unavailable
from learnloop_service.app.model_registry.proxy import DEADLINE_S, NoAnswerInTime
from learnloop_service.environment.full_context import CODE as FULL_CONTEXT
from learnloop_service.environment.full_context import read_full_context
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.protocol import strict_json
from learnloop_service.training.protocol.lines import lines_of
from learnloop_service.training.rollout.http_transport import client_session

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

_KEY_REFUSED = (401, 403)
_UNAVAILABLE_STATUSES = (502, 503, 504)
_NO_ROUTE = (404, 405)
_CONNECT_S = 10.0
_DATA = b"data:"
_LAST = b"[DONE]"

log = structlog.get_logger(__name__)


class ServerAway(Unavailable):
    """The server is unreachable, starting or stopping."""


class ModelRefused(ServiceError):
    """The model's server rejected the request or failed on it. `status` is the server's own."""

    title = "The model's server refused the request"

    def __init__(self, status: int, error: Mapping[str, Json]) -> None:
        super().__init__(str(error.get("message") or f"The server of the model answered with {status}."))
        self.status = status  # type: ignore[misc]
        self._error = error

    def members(self) -> Mapping[str, Any]:
        fields = {name: self._error[name] for name in ("code", "param") if self._error.get(name) is not None}
        return fields if read_full_context(str(self)) is None else fields | {"code": FULL_CONTEXT}


class NoTokenCount(InvalidRequest):
    """The model's server cannot count tokens."""

    status = 400


@dataclass(slots=True)
class Upstream:
    """Client for the servers of models. All requests can raise ServerAway, ModelRefused, NoAnswerInTime or BadGateway.

    It uses aiohttp directly, because httpx on top of it takes twice as long.
    """

    deadline_s: float = DEADLINE_S
    """Time limit for a whole reply, in seconds."""
    _session: "ClientSession | None" = None

    async def count_tokens(self, endpoint: Endpoint, body: Mapping[str, Json]) -> int:
        """Return the number of tokens in a completion's prompt, as reported by `/tokenize` of vLLM and our engine.
        Raises NoTokenCount."""
        try:
            async with self._post(endpoint, body, f"{endpoint.base_url.removesuffix('/v1')}/tokenize") as reply:
                return int(orjson.loads(await reply.read())["count"])
        except ModelRefused as error:
            if error.status in _NO_ROUTE and not error.members():
                raise NoTokenCount(("body",), "The server of this model does not count tokens.") from error
            raise
        except (ValueError, KeyError, TypeError):
            raise BadGateway("The server of the model answered with no count of tokens.") from None

    async def complete(self, endpoint: Endpoint, body: Mapping[str, Json]) -> dict[str, Json]:
        """Return a completion."""
        async with self._post(endpoint, body, _completions(endpoint)) as reply:
            return _completion(await reply.read())

    async def chunks(self, endpoint: Endpoint, body: Mapping[str, Json]) -> AsyncGenerator[dict[str, Json]]:
        """Yield the chunks of a streamed completion. Raises ServerAway if the stream breaks off."""
        async with self._post(endpoint, {**body, "stream": True}, _completions(endpoint)) as reply:
            async for line in lines_of(reply.content.iter_any()):
                if not line.startswith(_DATA):
                    continue
                data = line[len(_DATA) :].strip()
                if data == _LAST:
                    return
                yield _chunk(data)
        raise ServerAway("The server of the model broke off.")

    @asynccontextmanager
    async def _post(self, endpoint: Endpoint, body: Mapping[str, Json], url: str) -> AsyncIterator["ClientResponse"]:
        import aiohttp

        if self._session is None:
            self._session = client_session(tls())
        headers = {
            "authorization": f"Bearer {endpoint.api_key}",
            "content-type": "application/json",
            "accept-encoding": "identity",
        }
        limits = aiohttp.ClientTimeout(total=self.deadline_s, sock_connect=_CONNECT_S)
        proxy = None if endpoint.remembers else proxy_of(url)
        try:
            async with self._session.post(
                url, data=orjson.dumps(body), headers=headers, allow_redirects=False, timeout=limits, proxy=proxy
            ) as reply:
                if not 200 <= reply.status < 300:
                    raise _refusal(reply.status, await reply.read(), endpoint)
                yield reply
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
                raise NoAnswerInTime(f"The model gave no answer within {self.deadline_s:.0f} s.") from error
            raise ServerAway(f"The server of the model is unreachable: {type(error).__name__}") from error

    async def aclose(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


def _completions(endpoint: Endpoint) -> str:
    return f"{endpoint.base_url}/chat/completions"


def _completion(body: bytes) -> dict[str, Json]:
    completion = _object(body)
    choices = _dicts(completion.get("choices"))
    if not choices or not all(isinstance(choice.get("message"), dict) for choice in choices):
        raise BadGateway("The server of the model answered with no completion.")
    return completion


def _chunk(data: bytes) -> dict[str, Json]:
    chunk = _object(data)
    if error := chunk.get("error"):
        message = error.get("message") if isinstance(error, dict) else error
        raise ServerAway(f"The server of the model broke off: {message}")
    choices = _dicts(chunk.get("choices"))
    if not all(isinstance(choice.get("index", 0), int) and _is_object(choice.get("delta")) for choice in choices):
        raise BadGateway("The server of the model sent a malformed stream.")
    return chunk


def _object(text: bytes) -> dict[str, Json]:
    try:
        document = strict_json.loads(text)
    except ValueError:
        raise BadGateway("The server of the model answered with no JSON.") from None
    if not isinstance(document, dict) or not _is_object(document.get("usage")):
        raise BadGateway("The server of the model answered with no completion.")
    return document


def _dicts(value: Json) -> list[dict[str, Json]]:
    if not isinstance(value or [], list) or not all(isinstance(choice, dict) for choice in value or ()):
        raise BadGateway("The server of the model sent malformed choices.")
    return value or []


def _is_object(value: Json) -> bool:
    return value is None or isinstance(value, dict)


def _refusal(status: int, body: bytes, endpoint: Endpoint) -> ServiceError:
    if status in _KEY_REFUSED:
        log.error("a model's server refuses our key", server=endpoint.base_url, status=status)
        return BadGateway("The server of the model rejects the credentials of this service.")
    try:
        error = orjson.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = {}
    error = error if isinstance(error, dict) else {"message": str(error)}
    if status in _UNAVAILABLE_STATUSES:
        return ServerAway(str(error.get("message") or f"The server of the model answered with {status}."))
    return ModelRefused(status, error)
