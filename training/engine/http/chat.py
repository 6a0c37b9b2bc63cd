"""Chat completions: from a request's messages to prompts, samples and replies, whole or streamed."""

import asyncio
import json
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import structlog

from learnloop_service.environment.full_context import CODE as FULL_CONTEXT
from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.computing import Computing
from learnloop_service.training.engine.http.base_checks import BaseChecks
from learnloop_service.training.engine.http.chat_request import EngineChatRequest
from learnloop_service.training.engine.http.errors import ApiError, api_error
from learnloop_service.training.engine.http.grammars import Grammars
from learnloop_service.training.engine.http.replies import (
    TokenTexts,
    choice,
    closing_mark,
    finish_reason,
    token_logprobs,
    usage,
)
from learnloop_service.training.engine.http.reply_grammar import reply_grammar
from learnloop_service.training.engine.http.sampled_turns import SampledTurns
from learnloop_service.training.engine.http.text_stream import TextStream
from learnloop_service.training.engine.registry.base_models import context_length
from learnloop_service.training.engine.registry.model_record import Target
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import GRAMMAR_S, Sample, SampleRequest
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.protocol.full_context import full_context_message
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.protocol.stop_reason import STOP_REASON

if TYPE_CHECKING:  # see Grammars
    from learnloop_service.training.engine.sampling.constraint import Grammar

log = structlog.get_logger(__name__)


_UNLIMITED = 1 << 30
"""Value of max_tokens if the request has none. The sampler reduces it to what the context has left."""

_RENDERED_AT_A_TIME = 2
"""Requests of one model with a foreign chat template that are rendered at the same time, each in a thread."""

_Event = tuple[int, int, float] | int
"""An event of a streamed request: (choice, token id, log-probability), or the number of a finished choice."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request that is ready to be sampled, once per choice. `conversation` is its digest for SampledTurns.

    Replies of trainable models carry `logprobs` unless the request turns them off. ART's scripts do not ask for them,
    because its own servers always return them, and replies without them cannot be trained on.
    """

    request: EngineChatRequest
    target: Target
    logprobs: bool
    tokenizer: ChatTokenizer
    texts: TokenTexts
    prompt: tuple[int, ...]
    conversation: bytes
    samples: tuple[SampleRequest, ...]
    id: str
    created: int
    in_thought: bool
    """Whether the prompt opened a thought, in which the reply begins."""

    @property
    def single_call(self) -> bool:
        """Whether the reply ends after its first call outside of thoughts. A stop string cannot tell such a call from
        one in a thought."""
        single = self.tokenizer.habits.single_call or (self.request.only_one_call and self.tokenizer.thinks)
        return single and bool(self.request.offered_tools)

    def header(self, kind: str) -> dict[str, Json]:
        """Return the fields at the start of every reply. `model` names the exact checkpoint."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.target.key}


class ChatCompletions:
    """Answers chat completion requests on the event loop."""

    def __init__(
        self,
        registry: Registry,
        compute: Computing,
        tokenizer: Callable[[Target], ChatTokenizer],
        turns: SampledTurns,
        checks: BaseChecks,
    ) -> None:
        self._registry = registry
        self._checks = checks
        self._rendering = lru_cache(32)(lambda tokenizer: asyncio.Semaphore(_RENDERED_AT_A_TIME))
        self._compute = compute
        self._tokenizer = tokenizer
        self._texts = lru_cache(32)(TokenTexts)
        self._turns = turns
        self._grammars = Grammars()

    async def complete(self, request: EngineChatRequest) -> dict[str, Json]:
        """Return a chat completion. Raises the errors that `protocol.api_error` maps. Cancelling it cancels its
        samples."""
        prepared = await self._prepared(request)
        sampled = await _all(
            [asyncio.create_task(self._compute.sample(prepared.target, sampling)) for sampling in prepared.samples]
        )
        samples = [_reply(prepared, sample) for sample in sampled]
        choices = [self._choice(prepared, index, sample) for index, sample in enumerate(samples)]
        exact: dict[str, Json] = {}
        if request.return_token_ids:
            exact["prompt_token_ids"] = prepared.prompt
            choices = [{**choice, "token_ids": sample.ids} for choice, sample in zip(choices, samples, strict=True)]
        return {**prepared.header("chat.completion"), "choices": choices, "usage": usage(samples), **exact}

    async def tokenize(self, request: EngineChatRequest) -> dict[str, Json]:
        """Return the tokens of the prompt that a completion would continue, in the form of vLLM's `/tokenize`."""
        target, tokenizer = await self._target(request.model)
        async with self._turn_to_render(tokenizer):
            prompt, _ = await asyncio.to_thread(self._prompt, request, target, tokenizer)
        return {"count": len(prompt), "max_model_len": context_length(target.base_directory), "tokens": prompt}

    async def stream(self, request: EngineChatRequest) -> AsyncIterator[str]:
        """Yield a chat completion as server-sent events.

        Errors before the first token are raised as in `complete`; later ones are the last event.
        """
        return _events(await self.chunks(request))

    async def chunks(self, request: EngineChatRequest) -> AsyncGenerator[dict[str, Json]]:
        """Return the chunks of a chat completion. Errors are those of `complete`: this call raises those before the
        first token, and the iteration later ones."""
        prepared = await self._prepared(request)
        events: asyncio.Queue[_Event] = asyncio.Queue()
        tasks = [self._start(prepared, index, events) for index in range(len(prepared.samples))]
        try:
            first = await events.get()
            if isinstance(first, int):
                tasks[first].result()
        except BaseException:
            await _cancel(tasks)
            raise
        return self._chunks(prepared, first, events, tasks)

    def _start(self, prepared: _Prepared, index: int, events: asyncio.Queue[_Event]) -> asyncio.Task[Sample]:
        task = asyncio.create_task(
            self._compute.sample(
                prepared.target,
                prepared.samples[index],
                lambda token, logprob: events.put_nowait((index, token, logprob)),
            )
        )
        task.add_done_callback(lambda _: events.put_nowait(index))
        return task

    async def _chunks(
        self,
        prepared: _Prepared,
        first: _Event,
        events: asyncio.Queue[_Event],
        tasks: Sequence[asyncio.Task[Sample]],
    ) -> AsyncGenerator[dict[str, Json]]:
        header = prepared.header("chat.completion.chunk")
        choices = [_StreamedChoice(prepared, index) for index in range(len(tasks))]
        unfinished = len(tasks)
        event = first
        try:
            exact = {"prompt_token_ids": prepared.prompt} if prepared.request.return_token_ids else {}
            for streamed in choices:
                yield {**header, "choices": [streamed.opening()], **exact}
                exact = {}
            while True:
                if isinstance(event, int):
                    sample = _reply(prepared, tasks[event].result())
                    choice = self._choice(prepared, event, sample)
                    for last in choices[event].closing(choice, sample):
                        yield {**header, "choices": [last]}
                    unfinished -= 1
                    if not unfinished:
                        break
                elif delta := choices[event[0]].token(event[1], event[2]):
                    yield {**header, "choices": [delta]}
                event = await events.get()
            if prepared.request.stream_options and prepared.request.stream_options.include_usage:
                yield {**header, "choices": [], "usage": usage([_reply(prepared, task.result()) for task in tasks])}
        finally:
            await _cancel(tasks)

    def _choice(self, prepared: _Prepared, index: int, sample: Sample) -> dict[str, Json]:
        message_choice = choice(
            prepared.request, prepared.tokenizer, prepared.texts, sample, prepared.prompt, index, prepared.logprobs
        )
        self._turns.remember(prepared.conversation, message_choice["message"], sample.ids, sample.logprobs)
        return message_choice

    async def _prepared(self, request: EngineChatRequest) -> _Prepared:
        """Prepare a request for sampling. Slow parts run in threads: reading a tokenizer, rendering and tokenizing the
        conversation, compiling a grammar."""
        (target, tokenizer), grammar = await self._target(request.model), None
        if (constraints := reply_grammar(request, tokenizer.tool_format)) is not None:
            grammar = await self._grammars.compile(constraints, tokenizer)
        async with self._turn_to_render(tokenizer):
            return await asyncio.to_thread(self._prepare, request, target, tokenizer, grammar)

    async def _target(self, model: str) -> tuple[Target, ChatTokenizer]:
        """Resolve a model's name, after checking a new base model."""
        await self._checks.admit(model)

        def find() -> tuple[Target, ChatTokenizer]:
            target = self._registry.sampled(model)
            return target, self._tokenizer(target)

        return await asyncio.to_thread(find)

    def _turn_to_render(self, tokenizer: ChatTokenizer) -> AbstractAsyncContextManager[None]:
        """Wait here, rather than in one of the few threads, for conversations of the same foreign template."""
        return nullcontext() if tokenizer.trusts_template else self._rendering(tokenizer)

    def _prepare(
        self, request: EngineChatRequest, target: Target, tokenizer: ChatTokenizer, grammar: "Grammar | None"
    ) -> _Prepared:
        prompt, conversation = self._prompt(request, target, tokenizer)
        # A grammar limits the number of calls itself, and can tell the end of a call from an argument that contains the
        # same text.
        marked = request.only_one_call and not grammar and not tokenizer.thinks
        closing = closing_mark(tokenizer) if marked else ""
        stop = (*request.stop, closing) if closing else tuple(request.stop)
        id = f"chatcmpl-{secrets.token_hex(12)}"
        samples = tuple(
            SampleRequest(
                prompt=prompt,
                weights_key=target.key,
                max_tokens=request.max_completion_tokens or request.max_tokens or _UNLIMITED,
                temperature=1.0 if request.temperature is None else request.temperature,
                top_p=1.0 if request.top_p is None else request.top_p,
                top_k=max(request.top_k or 0, 0),
                min_p=request.min_p or 0.0,
                seed=None if request.seed is None else request.seed + index,
                stop=stop,
                stop_ids=tokenizer.stop_ids,
                top_logprobs=request.top_logprobs or 0,
                grammar=grammar,
                grammar_s=GRAMMAR_S / (request.n or 1),
                call=id,
            )
            for index in range(request.n or 1)
        )
        return _Prepared(
            request,
            target,
            target.model is not None if request.logprobs is None else request.logprobs,
            tokenizer,
            self._texts(tokenizer),
            prompt,
            conversation,
            samples,
            id,
            int(time.time()),
            tokenizer.opens_thought(prompt),
        )

    def _prompt(
        self, request: EngineChatRequest, target: Target, tokenizer: ChatTokenizer
    ) -> tuple[tuple[int, ...], bytes]:
        """Return the prompt's tokens and the conversation's digest for SampledTurns."""
        _check_length(request, target, tokenizer)
        tools = request.offered_tools
        scope = target.model.id if target.model else target.key
        remembered, conversation = self._turns.find(scope, tools, request.messages)
        exact = {**remembered, **_reply_token_ids(request.messages, tokenizer)}
        messages = [
            {key: value for key, value in message.items() if key != "token_ids"} for message in request.messages
        ]
        return tuple(tokenizer.prompt(messages, tools, exact=exact)), conversation


class _StreamedChoice:
    """Produces the deltas of one choice."""

    def __init__(self, prepared: _Prepared, index: int) -> None:
        request = prepared.request
        self._prepared = prepared
        self._index = index
        calls = prepared.tokenizer.tool_format.marks if request.offered_tools else ()
        # Where content stands in a channel, only the whole reply shows what is content, so nothing is shown before.
        stop = ("", *request.stop) if prepared.tokenizer.tool_format.in_channels else request.stop
        self._text = TextStream(prepared.tokenizer, stop, calls, in_thought=prepared.in_thought)
        self._ids: list[int] = []
        self._ended = False
        """Whether a call ended the reply. Tokens after it are held back until the sample shows which belong to it."""

    def opening(self) -> dict[str, Json]:
        """Return the first delta."""
        return self._delta({"role": "assistant", "content": ""})

    def token(self, token: int, logprob: float) -> dict[str, Json] | None:
        """Return the delta that a token causes, if any. Log-probabilities are sent with their token, even if its text
        is held back."""
        if self._ended:
            return None
        self._ids.append(token)
        text = self._text.push(token)
        prepared = self._prepared
        self._ended = prepared.single_call and prepared.tokenizer.ends_call(self._ids, in_thought=prepared.in_thought)
        extra = self._tokens([token], [logprob])
        return {**self._delta({"content": text}), **extra} if extra or text else None

    def _tokens(self, ids: list[int], logprobs: list[float]) -> dict[str, Json]:
        """Return the fields of a delta about its tokens."""
        extra: dict[str, Json] = {}
        if self._prepared.logprobs and not self._prepared.request.top_logprobs:
            sample = Sample(ids, logprobs, "stop", 0, 0)
            extra["logprobs"] = {"content": token_logprobs(self._prepared.texts, sample), "refusal": None}
        if self._prepared.request.return_token_ids:
            extra["token_ids"] = ids
        return extra

    def closing(self, choice: dict[str, Json], sample: Sample) -> list[dict[str, Json]]:
        """Return the last deltas: the missing part of the content, complete tool calls, and the finish reason."""
        message = choice["message"]
        deltas = []
        streamed = len(self._ids)
        if sample.ids[streamed:] and (late := self._tokens(sample.ids[streamed:], sample.logprobs[streamed:])):
            deltas.append({**self._delta({"content": ""}), **late})
        if self._prepared.request.top_logprobs:  # the alternatives are only known at the end
            deltas.append(self._delta({"content": ""}, logprobs=choice["logprobs"]))
        if rest := self._text.rest(message["content"] or ""):
            deltas.append(self._delta({"content": rest}))
        if calls := message.get("tool_calls"):
            deltas.append(self._delta({"tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]}))
        more = {name: choice[name] for name in (MALFORMED, STOP_REASON) if name in choice}
        return [*deltas, {**self._delta({}, finish_reason=finish_reason(message, sample)), **more}]

    def _delta(
        self, delta: dict[str, Json], *, logprobs: Json = None, finish_reason: str | None = None
    ) -> dict[str, Json]:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _reply(prepared: _Prepared, sample: Sample) -> Sample:
    """Return the part of a sample that is the reply, which can end after the first call."""
    if not prepared.single_call:
        return sample
    length = prepared.tokenizer.through_first_call(sample.ids, in_thought=prepared.in_thought)
    if length == len(sample.ids):
        return sample
    ids, logprobs, top = sample.ids[:length], sample.logprobs[:length], sample.top[:length]
    return replace(sample, ids=ids, logprobs=logprobs, top=top, finish_reason="stop", stop_text=None)


def _reply_token_ids(messages: Sequence[Mapping[str, Json]], tokenizer: ChatTokenizer) -> dict[int, tuple[int, ...]]:
    """Return the sampled ids that the client has kept, by index of the assistant message. Raises ApiError for ids that
    the model does not have."""
    by_index = {index: tuple(message["token_ids"]) for index, message in enumerate(messages) if "token_ids" in message}
    for index, ids in by_index.items():
        if max(ids, default=0) >= tokenizer.vocab_size:
            fault = f"message {index}: the model has no token {max(ids)}"
            raise ApiError(400, fault, code="invalid_value", param="messages")
    return by_index


def _check_length(request: EngineChatRequest, target: Target, tokenizer: ChatTokenizer) -> None:
    """Raise ApiError for a conversation that cannot fit, before rendering it: each message takes at least one token,
    and no token has more characters than the longest one."""
    context = context_length(target.base_directory)
    if context is None:
        return
    characters = sum(map(_characters, request.messages))
    least = max(len(request.messages), math.ceil(characters / tokenizer.longest_token))
    if least > context:
        message = full_context_message(least, context, at_least=True)
        raise ApiError(400, message, code=FULL_CONTEXT, param="messages")


def _characters(message: Mapping[str, Json]) -> int:
    calls = message.get("tool_calls") or []
    return len(message["content"] or "") + sum(len(call["function"]["arguments"]) for call in calls)


async def _all(tasks: Sequence[asyncio.Task[Sample]]) -> list[Sample]:
    """Return the samples in order. If one fails or the caller is cancelled, the others are cancelled too."""
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        await _cancel(tasks)
        raise


async def _cancel(tasks: Sequence[asyncio.Task[Sample]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _events(chunks: AsyncGenerator[dict[str, Json]]) -> AsyncIterator[str]:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield _server_sent(chunk)
            yield "data: [DONE]\n\n"
        except Exception as error:
            log.warning("stream failed", error=repr(error))
            yield _server_sent(api_error(error).body())


def _server_sent(value: Json) -> str:
    """Format a server-sent event without a name, with the value as JSON."""
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
