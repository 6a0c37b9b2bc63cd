"""Rollouts of a model that is prompted, not trained."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import ValidationError

from learnloop_service.environment.base import Json
from learnloop_service.judges.asking import Sleep, retrying
from learnloop_service.judges.base import JudgeModel
from learnloop_service.judges.llm import JudgeUnavailable, response_to

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

_TIMEOUT_S = 120.0
_FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


class PromptedModelUnavailable(Exception):
    """The model gave no answer. The message contains no key."""


class PromptedChat:
    """A Chat whose requests omit parameters that the model does not accept, such as a seed."""

    remembers = False
    tells_token_ids = False

    def __init__(self, model: JudgeModel, *, concurrency: int, sleep: Sleep = asyncio.sleep) -> None:
        """At most `concurrency` requests run at the same time. `sleep` waits between retries."""
        self.model = model.name
        self._model = model
        self._gate = asyncio.Semaphore(concurrency)
        self._sleep = sleep

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        """Return the completion, with retries where they can help. Raises PromptedModelUnavailable."""
        request = {name: value for name, value in body.items() if name != "model"}
        try:
            async with self._gate:
                response: dict[str, Json] = await retrying(self._sleep)(response_to, self._model, request, _TIMEOUT_S)
        except JudgeUnavailable as error:
            raise PromptedModelUnavailable(str(error)) from None
        return _as_completion(response, self.model)


def _as_completion(response: Mapping[str, Json], model: str) -> "ChatCompletion":
    """Convert a response to OpenAI's form, without other providers' additions. Raises PromptedModelUnavailable."""
    from openai.types.chat import ChatCompletion

    choices = [
        {
            "index": number,
            "finish_reason": choice["finish_reason"] if choice.get("finish_reason") in _FINISH_REASONS else "stop",
            "message": {"role": "assistant", **choice["message"]},
        }
        for number, choice in enumerate(response["choices"])
    ]
    whole = {"id": response.get("id") or "", "object": "chat.completion", "created": 0, "model": model}
    try:
        return ChatCompletion.model_validate({**whole, "choices": choices, "usage": response.get("usage")})
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise PromptedModelUnavailable(f"an answer that is not a chat completion: {where}: {problem['msg']}") from None
