"""Requests to a language model that writes data, with retries."""

import json
from collections.abc import Mapping
from typing import Any

from tenacity import retry, retry_if_exception, stop_after_attempt, wait_random_exponential

from learnloop_service.environment.json_type import Json
from learnloop_service.judges.base import JudgeModel
from learnloop_service.judges.llm import Completion, JudgeUnavailable, complete

_TIMEOUT_S = 120.0
_REQUESTS = 5


class NotWritten(Exception):
    """The model wrote nothing or too little; the message says why."""


@retry(
    retry=retry_if_exception(lambda error: isinstance(error, JudgeUnavailable) and error.retryable),
    stop=stop_after_attempt(_REQUESTS),
    wait=wait_random_exponential(multiplier=1.0, min=0.5, max=60.0),
    reraise=True,
)
async def completed(model: JudgeModel, prompt: str, schema: Mapping[str, Any]) -> Completion:
    """Return the model's completion, which follows the JSON schema if the model obeys it. Raises JudgeUnavailable."""
    messages = [{"role": "user", "content": prompt}]
    return await complete(model, messages, schema=schema, temperature=None, timeout_s=_TIMEOUT_S)


def listed(text: str, name: str) -> list[Json] | None:
    """Parse the list of that name in a model's reply; None if there is none."""
    try:
        entries = json.loads(text[text.find("{") : text.rfind("}") + 1])[name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return entries if isinstance(entries, list) else None
