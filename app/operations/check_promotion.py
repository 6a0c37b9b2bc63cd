"""Checks whether a promoted name answers, and with the right checkpoint, by sampling one token like any client."""

import time
from dataclasses import dataclass

import httpx

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.errors import Unavailable
from learnloop_service.app.model_registry.resolver import ModelResolver
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.protocol.model_name import ModelName

_TIMEOUT_S = 60.0
_QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1, "temperature": 0}


@dataclass(frozen=True, slots=True)
class PromotedNameCheck:
    """The result of checking a promoted name."""

    checkpoint: str
    healthy: bool
    answered_by: str | None
    seconds: float
    reason: str | None


async def check(models: ModelResolver, http: httpx.AsyncClient, caller: Caller, name: ModelName) -> PromotedNameCheck:
    """Check a promoted name. Raises UnknownModelName."""
    resolved = await models.resolve(caller, str(name))
    began = time.monotonic()
    answered_by, reason = None, None
    try:
        endpoint = await models.endpoint(resolved)
        answered_by = await _ask(http, endpoint)
        if answered_by != endpoint.model:
            reason = f"{answered_by} answered instead of {endpoint.model}"
    except Unavailable as error:
        reason = str(error)
    except _NoAnswer as error:
        reason = str(error)
    return PromotedNameCheck(resolved.name, reason is None, answered_by, time.monotonic() - began, reason)


class _NoAnswer(Exception):
    """The model's server returned no completion."""


async def _ask(http: httpx.AsyncClient, endpoint: Endpoint) -> str:
    """Ask the endpoint, and return the model that the reply names. Raises _NoAnswer."""
    try:
        reply = await http.post(
            f"{endpoint.base_url}/chat/completions",
            headers={"authorization": f"Bearer {endpoint.api_key}"},
            json={"model": endpoint.model, **_QUESTION},
            timeout=_TIMEOUT_S,
        )
    except httpx.TransportError as error:
        raise _NoAnswer(f"the server of the model is unreachable: {type(error).__name__}") from error
    try:
        body = reply.json()
        if reply.is_success:
            return str(body["model"])
        raise _NoAnswer(str(body["error"]["message"]))
    except (ValueError, KeyError, TypeError) as error:
        raise _NoAnswer(f"the server of the model answered {reply.status_code}") from error
