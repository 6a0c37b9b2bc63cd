"""Remembers how assistant messages were sampled: their token ids and log-probabilities.

A client sends a conversation back as text, and tokenising text is not the inverse of sampling. With the exact ids, the
next turn's prompt continues what the model really saw, and its cache can be used. Moreover, trajectories can still be
trained on if their replies lost their log-probabilities because a framework rebuilt the messages.
"""

import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from hashlib import blake2b

from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.trainer.trajectories import Conversation, Group, TrainingTrajectory
from learnloop_service.training.protocol.chat_reader import arguments_value


@dataclass(frozen=True, slots=True)
class _Reply:
    """A sampled reply in 8 bytes per token: int32 ids, and log-probabilities as float32, which is their original
    precision."""

    ids: "array[int]"
    logprobs: "array[float]"


class SampledTurns:
    """Sampled replies, looked up by the whole conversation up to them. It holds the most recently used ones, at most
    `capacity` with `token_capacity` tokens in total, and is thread-safe."""

    def __init__(self, capacity: int = 50_000, token_capacity: int = 4_000_000) -> None:
        self._capacity = capacity
        self._token_capacity = token_capacity
        self._tokens = 0
        self._replies: OrderedDict[bytes, _Reply] = OrderedDict()
        self._lock = threading.Lock()

    def find(
        self, scope: str, tools: Json, messages: Sequence[Mapping[str, Json]]
    ) -> tuple[dict[int, tuple[int, ...]], bytes]:
        """Return the ids of the known assistant messages by index, and the conversation's digest for `remember`.

        `scope` is the id of a model or the name of a base model, because ids are only valid for one tokenizer.
        """
        remembered, digest = self._remembered(scope, tools, messages)
        return {index: tuple(reply.ids) for index, reply in remembered.items()}, digest

    def remember(
        self, conversation: bytes, reply: Mapping[str, Json], ids: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        """Remember how the assistant message `reply` to a conversation was sampled."""
        digest = _digest(conversation, _identity(reply))
        with self._lock:
            self._forget(digest)
            self._replies[digest] = _Reply(array("i", ids), array("f", logprobs))
            self._tokens += len(ids)
            while len(self._replies) > self._capacity or self._tokens > self._token_capacity:
                self._forget(next(iter(self._replies)))

    def completed(self, scope: str, groups: Sequence[Group]) -> list[Group]:
        """Return `groups` with tokens added to remembered replies of the model `scope` that lack them.

        As in ART, choices are trained on and plain messages are context. If a trajectory has no choices at all,
        something must have turned them into messages, so every message that the model sampled is trained on.
        """
        return [tuple(self._completed(scope, trajectory) for trajectory in group) for group in groups]

    def _completed(self, scope: str, trajectory: TrainingTrajectory) -> TrainingTrajectory:
        has_choices = any(conversation.choices for conversation in trajectory.conversations)
        conversations = []
        for conversation in trajectory.conversations:
            roles = enumerate(message["role"] for message in conversation.messages)
            trained = conversation.choices if has_choices else {index for index, role in roles if role == "assistant"}
            conversations.append(self._with_tokens(scope, conversation, trained - conversation.exact.keys()))
        return replace(trajectory, conversations=tuple(conversations))

    def _with_tokens(self, scope: str, conversation: Conversation, lost: Set[int]) -> Conversation:
        if not lost:
            return conversation
        remembered, _ = self._remembered(scope, conversation.tools, conversation.messages)
        restored = {index: reply for index, reply in remembered.items() if index in lost}
        return replace(
            conversation,
            exact={**conversation.exact, **{index: tuple(reply.ids) for index, reply in restored.items()}},
            logprobs={**conversation.logprobs, **{index: tuple(reply.logprobs) for index, reply in restored.items()}},
        )

    def _remembered(
        self, scope: str, tools: Json, messages: Sequence[Mapping[str, Json]]
    ) -> tuple[dict[int, _Reply], bytes]:
        digest = _digest(b"", [scope, [_tool_identity(tool) for tool in tools or []]])
        replies = {}
        for index, message in enumerate(messages):
            digest = _digest(digest, _identity(message))
            if message["role"] == "assistant" and (reply := self._get(digest)) is not None:
                replies[index] = reply
        return replies, digest

    def _get(self, digest: bytes) -> _Reply | None:
        with self._lock:
            if (reply := self._replies.get(digest)) is not None:
                self._replies.move_to_end(digest)
            return reply

    def _forget(self, digest: bytes) -> None:
        if (reply := self._replies.pop(digest, None)) is not None:
            self._tokens -= len(reply.ids)


def _identity(message: Mapping[str, Json]) -> Json:
    """Return the part of a message that the model sees. Clients drop, add or reformat the rest when they send it."""
    role = "system" if message["role"] == "developer" else message["role"]
    calls = [
        (call.get("id"), call["function"]["name"], arguments_value(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]
    # Frameworks add the name of their agent to assistant messages after sampling.
    name = None if role == "assistant" else message.get("name")
    return [role, _text(message.get("content")), calls, message.get("tool_call_id"), name]


def _text(content: Json) -> Json:
    if isinstance(content, list) and all(isinstance(part, dict) and "text" in part for part in content):
        return "".join(str(part["text"]) for part in content)
    return content or ""


def _tool_identity(tool: Json) -> Json:
    """Return a tool without fields that clients add or drop."""
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    return [function.get("name"), function.get("description") or "", function.get("parameters") or {}]


def _digest(before: bytes, value: Json) -> bytes:
    return blake2b(before + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
