"""Converts completions to chunks of a stream and back, in OpenAI's format."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.protocol.stop_reason import STOP_REASON

Chunk = dict[str, Json]
_EXACT = "prompt_token_ids"
_ABOUT_END = (MALFORMED, STOP_REASON)
"""Fields of a choice, and of its last chunk, that say how it ended."""


class AnotherReply(Exception):
    """The reply differs from the part that the client has already received."""


@dataclass(slots=True)
class _Choice:
    content: list[str] = field(default_factory=list)
    tool_calls: dict[int, dict[str, Json]] = field(default_factory=dict)
    logprobs: list[Json] | None = None
    finish_reason: str | None = None
    about_end: dict[str, Json] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(self.content)

    def add(self, choice: Mapping[str, Json]) -> None:
        delta = choice.get("delta") or {}
        self.content.append(delta.get("content") or "")
        for call in delta.get("tool_calls") or ():
            self._add_call(call)
        if choice.get("logprobs"):
            self.logprobs = self.logprobs if self.logprobs is not None else []
            self.logprobs += choice["logprobs"].get("content") or ()
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.about_end |= _about_end(choice)

    def _add_call(self, call: Mapping[str, Json]) -> None:
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        assembled = self.tool_calls.setdefault(call.get("index", len(self.tool_calls)), empty)
        assembled["id"] = call.get("id") or assembled["id"]
        for name in ("name", "arguments"):
            assembled["function"][name] += (call.get("function") or {}).get(name) or ""

    def whole(self, index: int) -> dict[str, Json]:
        message: dict[str, Json] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.tool_calls:
            message["content"] = self.text or None
            message["tool_calls"] = [self.tool_calls[number] for number in sorted(self.tool_calls)]
        logprobs = None if self.logprobs is None else {"content": self.logprobs, "refusal": None}
        choice = {"index": index, "message": message, "finish_reason": self.finish_reason, "logprobs": logprobs}
        return choice | self.about_end


class Assembly:
    """Assembles the chunks of a stream into a completion."""

    def __init__(self) -> None:
        self._header: dict[str, Json] = {}
        self._choices: dict[int, _Choice] = {}
        self._more: dict[str, Json] = {}

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk."""
        self._header = self._header or {name: chunk.get(name) for name in ("id", "created", "model")}
        for name in ("usage", _EXACT):
            if chunk.get(name) is not None:
                self._more[name] = chunk[name]
        for choice in chunk.get("choices") or ():
            self._choices.setdefault(choice.get("index", 0), _Choice()).add(choice)

    @property
    def is_whole(self) -> bool:
        """Whether at least one choice began and all have ended."""
        return bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())

    def completion(self) -> dict[str, Json]:
        """Return the completion assembled so far."""
        choices = [self._choices[index].whole(index) for index in sorted(self._choices)]
        return {**self._header, "object": "chat.completion", "choices": choices, **self._more}

    def rest_of(self, completion: Mapping[str, Json]) -> Iterator[Chunk]:
        """Yield the chunks that are still missing, from the same reply sampled again as a whole. Raises
        AnotherReply."""
        if not self._choices:
            yield from chunks_of(completion)
            return
        rest = []
        for choice in completion["choices"]:
            partial = self._choices.get(choice["index"], _Choice())
            rest.append(_remainder(choice, partial))
        yield from chunks_of({**completion, "choices": rest})

    def with_header(self, completion: Mapping[str, Json]) -> dict[str, Json]:
        """Return the same reply, sampled again, under the id that the client has received."""
        return {**completion, **{name: value for name, value in self._header.items() if value}}


def chunks_of(completion: Mapping[str, Json]) -> Iterator[Chunk]:
    """Yield a whole completion as the chunks of a stream."""
    header = {name: completion.get(name) for name in ("id", "created", "model")}
    header["object"] = "chat.completion.chunk"
    exact = {_EXACT: completion[_EXACT]} if _EXACT in completion else {}
    for choice in completion["choices"]:
        message = choice["message"]
        delta = {"role": "assistant", "content": message.get("content") or ""}
        if calls := message.get("tool_calls"):
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        start = {"index": choice["index"], "delta": delta, "logprobs": choice.get("logprobs"), "finish_reason": None}
        yield {**header, "choices": [start], **exact}
        exact = {}
    for choice in completion["choices"]:
        end = {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
        yield {**header, "choices": [end | _about_end(choice)]}
    if completion.get("usage"):
        yield {**header, "choices": [], "usage": completion["usage"]}


def _about_end(choice: Mapping[str, Json]) -> dict[str, Json]:
    return {name: choice[name] for name in _ABOUT_END if choice.get(name)}


def _remainder(choice: Mapping[str, Json], partial: _Choice) -> dict[str, Json]:
    message = choice["message"]
    content, calls = message.get("content") or "", message.get("tool_calls") or []
    begun_calls = [partial.tool_calls[index] for index in sorted(partial.tool_calls)]
    if not content.startswith(partial.text) or begun_calls not in ([], calls):
        raise AnotherReply("The model's server broke off and gave another reply when it was asked again.")
    rest = {"role": "assistant", "content": content[len(partial.text) :]}
    if calls and not partial.tool_calls:
        rest["tool_calls"] = calls
    logprobs = choice.get("logprobs")
    if logprobs and logprobs.get("content"):
        logprobs = {**logprobs, "content": logprobs["content"][len(partial.logprobs or ()) :]}
    return {**choice, "message": rest, "logprobs": logprobs}
