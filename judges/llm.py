"""One question to a language model by OpenAI's chat completions: its answer and the cost, or why there is none.

Address and key come from the JudgeModel alone: no environment variable adds to a request, and no provider's own library
is involved.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from learnloop_service.environment.base import Json
from learnloop_service.environment.bounded_http import AnswerRefused, parse_retry_after
from learnloop_service.environment.full_context import is_full_context
from learnloop_service.judges.base import JudgeModel
from learnloop_service.judges.careful_http import HttpReply, UnusableReply, post

_MAX_ERROR_CHARACTERS = 300
_HIDDEN = "[key]"
_MIN_SECRET_CHARACTERS = 8
_KEY = re.compile(r"(?i)\bbearer\s+\S+|\b(?:sk|key|gsk|xai)-[\w*.-]{6,}")
"""Text that looks like a key. Some providers echo the key of a request in their errors."""
_INSTEAD: Mapping[str, str | None] = {
    "max_completion_tokens": "max_tokens",
    "response_format": None,
    "seed": None,
    "temperature": None,
}
"""The field that replaces one that a model does not take; None leaves it out."""
_NAMED: Mapping[str, str] = {"response_format": r"(?i)\bresponse[_ ]format\b|\bjson[_ ]schema\b"}
"""How servers name a field that they refuse, if not by its name alone."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer and its cost."""

    text: str
    finish_reason: str | None
    refusal: str | None
    """Why it will not answer, in its own words; None if it did not say so."""
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """None if the model's price is unknown."""


class JudgeUnavailable(Exception):
    """The model gave no answer.

    If it is `retryable`, another request can succeed, after `retry_after_s` seconds if the server named a time. If it
    `is_too_long`, the question does not fit the model's context.
    """

    def __init__(
        self, reason: str, *, retryable: bool, retry_after_s: float | None = None, is_too_long: bool = False
    ) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.is_too_long = is_too_long


async def complete(
    model: JudgeModel,
    messages: Sequence[Mapping[str, Json]],
    *,
    schema: Mapping[str, Json],
    temperature: float | None,
    timeout_s: float,
) -> Completion:
    """Return the answer. It is JSON of that schema, unless the model's server refuses schemas.

    Raises JudgeUnavailable; its text holds no key.
    """
    request: dict[str, Json] = {"messages": [dict(message) for message in messages]}
    form = {"name": "answer", "schema": dict(schema), "strict": True}
    request["response_format"] = {"type": "json_schema", "json_schema": form}
    if temperature is not None:
        request["temperature"] = temperature
    return _completion(model, await response_to(model, request, timeout_s))


async def response_to(model: JudgeModel, request: Mapping[str, Json], timeout_s: float) -> dict[str, Json]:
    """Return the model's response to any chat request, with a list of choices that each have a message.

    The request is sent again only if the model refuses one of its fields, such as `temperature`, and then without it or
    with the field that replaces it. Raises JudgeUnavailable; its text holds no key.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _response_to(model, request)
    except TimeoutError:
        raise JudgeUnavailable(f"no answer within {timeout_s:g} s", retryable=True) from None
    except JudgeUnavailable:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, (UnusableReply, AnswerRefused)) else f"{type(error).__name__}: {error}"
        # From None: the error can hold the request with its headers.
        raise JudgeUnavailable(_scrubbed(reason, model.api_key), retryable=True) from None


async def _response_to(model: JudgeModel, request: Mapping[str, Json]) -> dict[str, Json]:
    headers = {"authorization": f"Bearer {model.api_key}"} if model.api_key else {}
    while True:
        body = {"model": model.id, **_accepted_fields(model, request)}
        reply = await post(model.transport(), f"{model.base_url}/chat/completions", headers, body)
        if reply.status == 200:
            return _checked(reply.object())
        field = _not_taken(reply, body)
        if field is None:
            raise _unavailable(reply, model.api_key)
        model.not_taken.add(field)


def _accepted_fields(model: JudgeModel, request: Mapping[str, Json]) -> dict[str, Json]:
    """Return the request without the fields that the model has refused, or with their replacements."""
    named = {_INSTEAD[field] if field in model.not_taken else field: value for field, value in request.items()}
    return {field: value for field, value in named.items() if field is not None}


def _not_taken(reply: HttpReply, body: Mapping[str, Json]) -> str | None:
    """Return the field that the server names as its reason to refuse the body; None if it names none."""
    if reply.status not in (400, 422) or _is_too_long(reply):
        return None
    named = (field for field in _INSTEAD if field in body and re.search(_NAMED.get(field, rf"\b{field}\b"), reply.text))
    return next(named, None)


def _checked(response: dict[str, Json]) -> dict[str, Json]:
    """Return the response if every choice has a message. Raises UnusableReply otherwise."""
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices:
        raise UnusableReply("an answer without choices")
    if not all(isinstance(choice, dict) and isinstance(choice.get("message"), dict) for choice in choices):
        raise UnusableReply("an answer with a choice that has no message")
    return response


def _completion(model: JudgeModel, response: Mapping[str, Json]) -> Completion:
    choice, usage = response["choices"][0], response.get("usage")
    content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
    finish_reason = choice.get("finish_reason")
    prompt_tokens, completion_tokens = _tokens(usage, "prompt_tokens"), _tokens(usage, "completion_tokens")
    return Completion(
        text=_without(model.api_key, content) if isinstance(content, str) else "",
        finish_reason=finish_reason if isinstance(finish_reason, str) else None,
        refusal=_scrubbed(str(refusal), model.api_key) if refusal else None,
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cost_usd=None if model.price is None else model.price.of(prompt_tokens, completion_tokens),
    )


def _tokens(usage: Json, name: str) -> int:
    count = usage.get(name) if isinstance(usage, dict) else None
    return max(0, count) if isinstance(count, int) else 0


def _unavailable(reply: HttpReply, key: str | None) -> JudgeUnavailable:
    return JudgeUnavailable(
        _scrubbed(f"HTTP {reply.status}: {_message(reply)}", key),
        retryable=reply.status in (408, 409, 425, 429) or reply.status >= 500,
        retry_after_s=parse_retry_after(reply.headers.get("retry-after"), datetime.now(UTC)),
        is_too_long=_is_too_long(reply),
    )


def _is_too_long(reply: HttpReply) -> bool:
    code = None
    with suppress(UnusableReply, KeyError, TypeError, AttributeError):
        code = reply.object()["error"].get("code")
    return is_full_context(reply.status, code, _message(reply))


def _message(reply: HttpReply) -> str:
    """Return the server's own message, or the whole text if it does not have OpenAI's form of an error."""
    with suppress(UnusableReply, KeyError, TypeError):
        return str(reply.object()["error"]["message"])
    return reply.text


def _scrubbed(text: str, key: str | None) -> str:
    plain = " ".join(_KEY.sub(_HIDDEN, _without(key, text)).split())
    return plain if len(plain) <= _MAX_ERROR_CHARACTERS else f"{plain[:_MAX_ERROR_CHARACTERS]} ..."


def _without(key: str | None, text: str) -> str:
    """Return the text without the key.

    Local servers get keys such as "1" or "EMPTY". Such a word is no secret, and removing it would change the answer.
    """
    is_secret = key is not None and len(key) >= _MIN_SECRET_CHARACTERS and not key.isalpha()
    return text.replace(key, _HIDDEN) if key and is_secret else text
