"""The requests of one rollout to its model, from any agent: seeded, budgeted, traced, counted and recorded."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from learnloop_service.environment.base import Json
from learnloop_service.environment.genai_spans import ChatAnswer
from learnloop_service.environment.genai_spans import chat as chat_span
from learnloop_service.training.budget import BudgetReached, Reservation, Usage
from learnloop_service.training.recorded_calls import RecordedCalls
from learnloop_service.training.rollout.chat import Chat, identity, message_of, sampled_ids

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

Message = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the replies of a rollout are sampled. The run decides this, not the agent."""

    temperature: float = 1.0
    max_tokens: int = 256


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A request and its answer."""

    messages: tuple[Message, ...]
    tools: Sequence[Json]
    completion: "ChatCompletion"
    used: Usage
    missing: Sequence[str] | None = None
    """Parts of the prompt that did not replace a text of the request; None if an agent brings its prompt itself."""


def cut_off(calls: Sequence[AnsweredCall]) -> str | None:
    """Return which reply ended a conversation because it was cut off at its limit of tokens; None if none did.

    A cut-off reply that a later call continues was of use to the agent, and does not count.
    """
    for number, call in enumerate(calls, 1):
        length = len(call.messages)
        is_cut = any(choice.finish_reason == "length" for choice in call.completion.choices)
        if is_cut and not any(
            len(later.messages) > length and later.messages[:length] == call.messages for later in calls[number:]
        ):
            return f"reply {number} was cut off at its limit, after {call.used.completion_tokens} tokens"
    return None


def seed_of_call(seed: int, number: int) -> int:
    """Return the seed that ModelCalls draws for call `number`, from 1, of a rollout with that seed."""
    seeds = Random(seed)
    for _ in range(number - 1):
        _next_seed(seeds)
    return _next_seed(seeds)


def _next_seed(seeds: Random) -> int:
    return seeds.getrandbits(53)


class ModelCalls:
    """The requests of one rollout to its model.

    Calls can run at the same time. Their seeds are drawn from the rollout's seed in the order in which the calls begin.
    """

    def __init__(
        self,
        chat: Chat,
        sampling: Sampling,
        seeds: Random,
        reservation: Reservation,
        metrics: "dict[str, float | int | bool]",
        recorded: RecordedCalls | None = None,
    ) -> None:
        """`metrics` are the trajectory's; turns, prompt_tokens, completion_tokens and sampling_s are counted in them.
        Requests with an answer in `recorded` are not sent again, and are not charged again."""
        self.begun = 0
        self.model = chat.model
        self.tells_token_ids = chat.tells_token_ids
        self._chat = chat
        self._sampling = sampling
        self._seeds = seeds
        self._reservation = reservation
        self._metrics = metrics
        self._recorded = recorded or RecordedCalls()
        self._answered: dict[int, AnsweredCall] = {}
        self._running: dict[int, Callable[[], Usage]] = {}
        self._call_ended = asyncio.Event()
        self._admission = asyncio.Lock()

    @property
    def answered(self) -> list[AnsweredCall]:
        """The answered calls, in the order in which they began."""
        return [self._answered[number] for number in sorted(self._answered)]

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Json],
        options: Mapping[str, Json] | None = None,
        max_tokens: int | None = None,
    ) -> "ChatCompletion":
        """Return the model's answer.

        `options` are further parameters of OpenAI's API, `max_tokens` a limit below the run's. Raises BudgetReached,
        and the client's errors.
        """
        number, self.begun = self.begun, self.begun + 1
        seed = _next_seed(self._seeds)
        conversation, limit = tuple(messages), min(self._sampling.max_tokens, max_tokens or self._sampling.max_tokens)
        parameters = {"temperature": self._sampling.temperature, "max_tokens": limit, "seed": seed}
        body = self._body(conversation, tools, {**(options or {}), **parameters})
        if (recorded := self._recorded.answer(body)) is not None:
            self._record_answer(number, conversation, tools, recorded, counts=self._recorded.counts)
            return recorded
        most = partial(self._usage_bound, conversation, tools, limit)
        async with self._admission:  # prevents two calls from reserving the same room
            await self._room_for(most)
            self._running[number] = most
        try:
            with chat_span("openai", model=self.model, messages=conversation, parameters=parameters) as traced:
                completion = await self._request_completion(body)
                used = self._record_answer(number, conversation, tools, completion)
                choice = completion.choices[0]
                traced.output = ChatAnswer(
                    message_of(choice), choice.finish_reason, used.prompt_tokens, used.completion_tokens
                )
        finally:
            del self._running[number]
            self._call_ended.set()
        self._reservation.spend(used)
        return completion

    async def _room_for(self, most: Callable[[], Usage]) -> None:
        """Reserve what one more call needs in addition to the running ones. Raises BudgetReached, but only after those
        have ended."""
        while True:
            try:
                await self._reservation.room_for(lambda: sum((bound() for bound in self._running.values()), most()))
                return
            except BudgetReached:
                if not self._running:
                    raise
            self._call_ended.clear()
            await self._call_ended.wait()

    def _body(
        self, messages: tuple[Message, ...], tools: Sequence[Json], parameters: Mapping[str, Json]
    ) -> Mapping[str, Json]:
        offered = {"tools": tools} if tools else {}
        return {"model": self.model, "messages": list(messages), **offered, **parameters}

    async def _request_completion(self, body: Mapping[str, Json]) -> "ChatCompletion":
        clock = time.monotonic()
        sent_body = {**body, "messages": self._with_token_ids(body["messages"])} if self._recorded.given else body
        completion = await self._chat.complete(sent_body)
        seconds = time.monotonic() - clock
        self._metrics["sampling_s"] += seconds
        self._recorded.add(body, completion, seconds)
        return completion

    def _with_token_ids(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with the sampled token ids added to each of our replies.

        This is needed after recorded answers were used, because the endpoint may not remember that conversation.
        """
        exact = list(messages)
        for call in self.answered if self._chat.tells_token_ids else ():
            length = len(call.messages)
            if tuple(messages[:length]) != call.messages or length == len(messages):
                continue
            for choice in call.completion.choices:
                ids = sampled_ids(choice)
                if ids and identity(message_of(choice)) == identity(messages[length]):
                    exact[length] = {**messages[length], "token_ids": ids}
        return exact

    def _record_answer(
        self,
        number: int,
        messages: tuple[Message, ...],
        tools: Sequence[Json],
        completion: "ChatCompletion",
        *,
        counts: bool = True,
    ) -> Usage:
        """Record the answer and return what it used. It is added to the rollout's usage if it `counts`."""
        used = Usage()
        if completion.usage:
            used = Usage(completion.usage.prompt_tokens, completion.usage.completion_tokens)
        self._metrics["turns"] += 1
        if counts:
            self._metrics["prompt_tokens"] += used.prompt_tokens
            self._metrics["completion_tokens"] += used.completion_tokens
        self._answered[number] = AnsweredCall(messages, tools, completion, used)
        return used

    def _usage_bound(self, messages: tuple[Message, ...], tools: Sequence[Json], reply_tokens: int) -> Usage:
        """Return an upper bound of what a request uses: the tokens of an earlier call that it repeats, and one token
        per byte of the rest."""
        repeated_tokens, fresh = 0, [*messages, {"tools": tools}]
        for call in reversed(self.answered):
            length = len(call.messages)
            is_longer = len(messages) > length and messages[:length] == call.messages and tools == call.tools
            if is_longer and call.used.tokens:  # without usage nothing is known of the tokens
                repeated_tokens, fresh = call.used.tokens, list(messages[length + 1 :])
                break
        return Usage(repeated_tokens + len(json.dumps(fresh, ensure_ascii=False).encode()), reply_tokens)
