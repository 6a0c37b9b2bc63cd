"""One question to a judge model, through litellm: its answer and what that cost, or why there is none."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import TYPE_CHECKING, Any

from environment.base import Json
from judges.base import JudgeModel
from judges.careful_http import MAX_ANSWER_BYTES, CarefulHttp, make_litellm_careful
from judges.litellm_loop import import_litellm, on_litellm_loop

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_MAX_ERROR_CHARACTERS = 300
_HIDDEN = "[key]"
_KEY = re.compile(r"(?i)\bbearer\s+\S+|\b(?:sk|key|gsk|xai)-[\w*.-]{6,}")
"""What looks like a key: some providers echo the one they were sent."""
_NO_KEY = "none"
"""A client must send some key; a server of one's own without a key gets this, and never the one of a provider."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model said, and what it cost."""

    text: str
    finish_reason: str | None
    refusal: str | None
    """Why it will not answer, in its own words; None if it did not say so."""
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    """None: the model's price is unknown."""


class JudgeUnavailable(Exception):
    """No answer came. `retryable`: another try may help, not before `retry_after_s` if the server named a time."""

    def __init__(self, reason: str, *, retryable: bool, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.retry_after_s = retry_after_s


async def complete(
    model: JudgeModel,
    messages: Sequence[Mapping[str, Json]],
    *,
    schema: Mapping[str, Json],
    temperature: float | None,
    timeout_s: float,
) -> Completion:
    """One request, never repeated here, for JSON of that schema; a model that knows no schemas is asked for any JSON.

    What the model does not take (a temperature, say) is left out. Raises JudgeUnavailable; its text holds no key.
    """
    request = {"messages": [dict(message) for message in messages], "temperature": temperature}
    return await on_litellm_loop(_complete(model, request, dict(schema), timeout_s))


async def response_to(model: JudgeModel, request: Mapping[str, Json], timeout_s: float) -> dict[str, Json]:
    """What the model answers to any chat request, in OpenAI's form; as `complete` in all else."""
    return await on_litellm_loop(_response_to(model, dict(request), timeout_s))


async def _response_to(model: JudgeModel, request: dict[str, Json], timeout_s: float) -> dict[str, Json]:
    litellm = import_litellm()
    with _as_unavailable(model, timeout_s):
        response: dict[str, Json] = (await _requested(litellm, model, request, timeout_s)).model_dump(mode="json")
        return response


async def _complete(
    model: JudgeModel, request: dict[str, Any], schema: dict[str, Json], timeout_s: float
) -> Completion:
    litellm = import_litellm()
    with _as_unavailable(model, timeout_s):
        request["response_format"] = _response_format(litellm, model, schema)
        return _completion(litellm, model, await _requested(litellm, model, request, timeout_s))


@contextmanager
def _as_unavailable(model: JudgeModel, timeout_s: float) -> Iterator[None]:
    """Whatever goes wrong, as JudgeUnavailable."""
    try:
        yield
    except TimeoutError:
        raise JudgeUnavailable(f"no answer within {timeout_s:g} s", retryable=True) from None
    except Exception as error:
        # From None: what litellm raises may hold the request's headers.
        raise _unavailable(error, model.api_key) from None


async def _requested(litellm: ModuleType, model: JudgeModel, request: dict[str, Any], timeout_s: float) -> Any:
    """litellm's response."""
    make_litellm_careful()
    async with asyncio.timeout(timeout_s), AsyncExitStack() as opened:
        if litellm.get_llm_provider(model.name, api_base=model.base_url)[1] == "openai":
            request["client"] = await opened.enter_async_context(_openai_client(model))
        return await litellm.acompletion(
            model=model.name,
            base_url=model.base_url,
            api_key=model.api_key or (_NO_KEY if model.base_url else None),
            timeout=timeout_s,
            num_retries=0,
            max_retries=0,
            drop_params=True,
            **request,
        )


def _response_format(litellm: ModuleType, model: JudgeModel, schema: dict[str, Json]) -> dict[str, Json]:
    if not litellm.supports_response_schema(model.name):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _completion(litellm: ModuleType, model: JudgeModel, response: Any) -> Completion:
    if not response.choices:
        raise JudgeUnavailable("an answer without choices", retryable=True)
    choice, usage = response.choices[0], getattr(response, "usage", None)
    text = choice.message.content or ""
    if len(text) > MAX_ANSWER_BYTES:
        raise JudgeUnavailable(f"an answer of more than {MAX_ANSWER_BYTES:,} characters", retryable=True)
    refusal = (getattr(choice.message, "provider_specific_fields", None) or {}).get("refusal")
    cost: float | None = None
    with suppress(Exception):  # it raises Exception itself for a model without a price
        cost = float(litellm.completion_cost(completion_response=response, model=model.name))
    return Completion(
        text=_without(model.api_key, text),
        finish_reason=choice.finish_reason,
        refusal=_scrubbed(str(refusal), model.api_key) if refusal else None,
        prompt_tokens=max(0, getattr(usage, "prompt_tokens", 0) or 0),
        completion_tokens=max(0, getattr(usage, "completion_tokens", 0) or 0),
        cost_usd=cost,
    )


def _unavailable(error: Exception, key: str | None) -> JudgeUnavailable:
    if isinstance(error, JudgeUnavailable):
        return error
    status = getattr(error, "status_code", None)
    said = str(error).rpartition("Exception - ")[2]  # litellm writes the names of three classes before it
    return JudgeUnavailable(
        _scrubbed(f"{type(error).__name__}: {said}", key),
        retryable=isinstance(status, int) and (status in (408, 409, 425, 429) or status >= 500),
        retry_after_s=_retry_after_s(error),
    )


def _scrubbed(text: str, key: str | None) -> str:
    plain = " ".join(_KEY.sub(_HIDDEN, _without(key, text)).split())
    return plain if len(plain) <= _MAX_ERROR_CHARACTERS else f"{plain[:_MAX_ERROR_CHARACTERS]} ..."


def _without(key: str | None, text: str) -> str:
    return text.replace(key, _HIDDEN) if key else text


def _retry_after_s(error: Exception) -> float | None:
    """Seconds or an HTTP date (RFC 9110, section 10.2.3)."""
    headers = getattr(error, "litellm_response_headers", None) or {}
    value = headers.get("retry-after", "")
    with suppress(ValueError, OverflowError):
        if value.strip().isdecimal():
            return float(value)
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    return None


def _openai_client(model: JudgeModel) -> "AsyncOpenAI":
    from openai import AsyncOpenAI

    return AsyncOpenAI(
        base_url=model.base_url,
        api_key=model.api_key or (_NO_KEY if model.base_url else None),
        http_client=CarefulHttp(),
        max_retries=0,
    )
