"""Requests to the judge model: within its limits, retried after a pause if it was unavailable, and with their cost."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from learnloop_service.environment.base import Json
from learnloop_service.environment.genai_spans import ChatAnswer, chat
from learnloop_service.judges.base import JudgeCall, JudgeModel
from learnloop_service.judges.llm import Completion, JudgeUnavailable, complete

MAX_REQUESTS = 5
"""How often one request is sent while the model is unavailable or reports too many requests."""
MAX_PAUSE_S = 60.0
_BYTES_PER_TOKEN = 4
"""Approximate figure for English. It estimates a request's tokens until the model reports how many there were."""
_back_off = wait_random_exponential(multiplier=1.0, min=0.5, max=MAX_PAUSE_S)
"""The pause before a retry, with full jitter: up to 1, 2, 4, 8 s."""

Sleep = Callable[[float], Awaitable[None]]


@dataclass(slots=True)
class CallUsage:
    """The cost of one verdict's requests so far."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0

    def add(self, completion: Completion) -> None:
        """Add an answer's cost. An unknown price makes the sum unknown."""
        self.prompt_tokens += completion.prompt_tokens
        self.completion_tokens += completion.completion_tokens
        if self.cost_usd is not None:
            self.cost_usd = None if completion.cost_usd is None else self.cost_usd + completion.cost_usd


class Asker:
    """Asks one model, with at most `model.concurrency` concurrent requests on each event loop."""

    def __init__(
        self,
        model: JudgeModel,
        schema: Mapping[str, Json],
        *,
        temperature: float | None,
        timeout_s: float,
        sleep: Sleep,
    ) -> None:
        """Answers follow `schema`; `timeout_s` limits one request and does not count the wait for its turn."""
        self._model = model
        self._schema = schema
        self._temperature = temperature
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def ask(self, messages: Sequence[Mapping[str, Json]], usage: CallUsage) -> Completion:
        """Return the model's answer, retrying errors that can pass. Raises JudgeUnavailable."""
        return await retrying(self._sleep)(self._once, messages, usage)

    async def _once(self, messages: Sequence[Mapping[str, Json]], usage: CallUsage) -> Completion:
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._model.concurrency))
        async with slots:
            name, estimate = self._model.name, _tokens(messages)
            await self._model.rate.turn(name, estimate)
            usage.requests += 1
            parameters = {} if self._temperature is None else {"temperature": self._temperature}
            provider = name.partition("/")[0]
            with chat(provider, model=name, messages=messages, parameters=parameters) as traced:
                completion = await complete(
                    self._model,
                    messages,
                    schema=self._schema,
                    temperature=self._temperature,
                    timeout_s=self._timeout_s,
                )
                message = {"role": "assistant", "content": completion.text}
                used = completion.prompt_tokens, completion.completion_tokens
                traced.output = ChatAnswer(message, completion.finish_reason, *used)
            await self._model.rate.used(name, sum(used) - estimate)
        usage.add(completion)
        return completion


def retrying(sleep: Sleep) -> AsyncRetrying:
    """Call a function up to MAX_REQUESTS times in all, as long as it raises a JudgeUnavailable that is retryable."""
    return AsyncRetrying(
        sleep=sleep,
        stop=stop_after_attempt(MAX_REQUESTS),
        wait=_pause_s,
        retry=retry_if_exception(lambda error: isinstance(error, JudgeUnavailable) and error.retryable),
        reraise=True,
    )


def call_of(
    judge: str, model: JudgeModel, usage: CallUsage, seconds: float, *, cached: bool = False, error: str | None = None
) -> JudgeCall:
    """Return the record of a verdict's cost."""
    return JudgeCall(
        judge=judge,
        model=model.name,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cost_usd=usage.cost_usd,
        requests=usage.requests,
        seconds=seconds,
        cached=cached,
        error=error,
    )


def _tokens(messages: Sequence[Mapping[str, Json]]) -> int:
    """Estimate the number of tokens in the messages."""
    return sum(len(str(message["content"]).encode("utf-8", "replace")) for message in messages) // _BYTES_PER_TOKEN


def _pause_s(state: RetryCallState) -> float:
    """Return the pause that the server named, bounded and with some jitter, or an exponential one if it named none."""
    error = state.outcome.exception() if state.outcome else None
    named = error.retry_after_s if isinstance(error, JudgeUnavailable) else None
    return _back_off(state) if named is None else min(MAX_PAUSE_S, named + _back_off(state) / 10)
