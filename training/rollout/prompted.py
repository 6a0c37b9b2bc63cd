"""A model that is prompted, not trained, as a rollout asks it: any that litellm reaches, or an OpenAI-compatible
server."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

from environment.base import Json
from judges.asking import MAX_REQUESTS, Sleep, pause_s
from judges.base import JudgeModel
from judges.litellm_loop import import_litellm, on_litellm_loop
from judges.llm import JudgeUnavailable, response_to

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

_TIMEOUT_S = 120.0


class PromptedModelUnavailable(Exception):
    """No answer came; the text holds no key."""


class PromptedChat:
    """As `training.rollout.chat.Chat`. What the model does not take (a seed, say) is left out."""

    remembers = False
    tells_token_ids = False

    def __init__(
        self, name: str, base_url: str | None, api_key: str | None, *, concurrency: int, sleep: Sleep = asyncio.sleep
    ) -> None:
        """`name` is litellm's, such as `openai/gpt-4.1-mini`; `base_url` is that of an OpenAI-compatible server.

        At most `concurrency` requests run at the same time; `sleep` waits out the pauses between repetitions.
        """
        self.model = name
        self._model = JudgeModel(name, base_url, api_key)
        self._gate = asyncio.Semaphore(concurrency)
        self._sleep = sleep

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        """The response, asked for again where that may help. Raises PromptedModelUnavailable."""
        from openai.types.chat import ChatCompletion

        request = {name: value for name, value in body.items() if name != "model"}
        retrying = AsyncRetrying(
            sleep=self._sleep,
            stop=stop_after_attempt(MAX_REQUESTS),
            wait=pause_s,
            retry=retry_if_exception(lambda error: isinstance(error, JudgeUnavailable) and error.retryable),
            reraise=True,
        )
        try:
            async with self._gate:
                response: dict[str, Json] = await retrying(response_to, self._model, request, _TIMEOUT_S)
        except JudgeUnavailable as error:
            raise PromptedModelUnavailable(str(error)) from None
        if not response.get("choices"):
            raise PromptedModelUnavailable("an answer without choices")
        return ChatCompletion.model_validate(response)


async def cost_usd(name: str, prompt_tokens: int, completion_tokens: int) -> float | None:
    """What that many tokens of the model cost, by litellm's price list; None if it does not know the model."""
    return await on_litellm_loop(_cost_usd(name, prompt_tokens, completion_tokens))


async def _cost_usd(name: str, prompt_tokens: int, completion_tokens: int) -> float | None:
    litellm = import_litellm()
    try:
        costs = litellm.cost_per_token(model=name, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)
    except Exception:  # it raises Exception itself for a model without a price
        return None
    return float(sum(costs))
