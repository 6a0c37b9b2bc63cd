"""Remembers which token ids an assistant message was sampled as.

A client sends a conversation back as text, and tokenising text is not the inverse of sampling. With the exact ids the
next turn's prompt continues what the model really saw, and its cache can be used.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

Json = Any


class SampledTurns:
    """Token ids of replies, found by the whole conversation up to the reply. Holds the newest `capacity` of them."""

    def __init__(self, capacity: int = 50_000) -> None:
        self._capacity = capacity
        self._ids: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()

    def find(
        self, scope: str, tools: Json, messages: Sequence[Mapping[str, Json]]
    ) -> tuple[dict[int, tuple[int, ...]], bytes]:
        """The ids of the known assistant messages by index, and the conversation's digest for `remember`.

        `scope` names the tokenizer: ids mean nothing to another one.
        """
        digest = _digest(b"", [scope, tools])
        exact = {}
        for index, message in enumerate(messages):
            digest = _digest(digest, _identity(message))
            if message["role"] == "assistant" and (ids := self._ids.get(digest)) is not None:
                self._ids.move_to_end(digest)
                exact[index] = ids
        return exact, digest

    def remember(self, conversation: bytes, reply: Mapping[str, Json], ids: Sequence[int]) -> None:
        """Keep the ids that the assistant message `reply` to a conversation was sampled as."""
        self._ids[_digest(conversation, _identity(reply))] = tuple(ids)
        while len(self._ids) > self._capacity:
            self._ids.popitem(last=False)


def _identity(message: Mapping[str, Json]) -> Json:
    """What of a message the model sees; clients drop or add the rest when they send it back."""
    calls = [
        (call.get("id"), call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or []
    ]
    return [message["role"], message.get("content") or "", calls, message.get("tool_call_id"), message.get("name")]


def _digest(before: bytes, value: Json) -> bytes:
    return blake2b(before + json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
