"""How requests and answers are kept: compressed JSON, in which ids and log-probabilities are exact."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from app.agent_sessions.canonical import CanonicalRequest
from environment.json_type import Json
from training.budget import Usage
from training.rollout.model_calls import AnsweredCall, Message

_MOST_TOKENS = 2**31 - 1
_LEVEL = 1
"""zlib's fastest: log-probabilities shrink to a fifth all the same."""
_MEMORY = 4
"""Of 9. Making zlib's usual tables takes longer than compressing an ordinary call, which is no smaller with them."""


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """What was asked."""

    messages: Sequence[Message]
    tools: Sequence[Json]
    parameters: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A call as it is recorded."""

    number: int
    digest: str
    occurrence: int
    protocol: str
    request: KeptRequest
    seed: int
    completion: dict[str, Json] | None
    """In OpenAI's form, with token ids and log-probabilities; None: not answered yet."""
    begun_at: datetime
    answered_at: datetime | None
    used: bool
    """Whether the last attempt made this request."""


def pack_request(request: CanonicalRequest) -> bytes:
    """For the database."""
    return _pack([request.messages, request.tools, request.parameters])


def unpack_request(value: bytes) -> KeptRequest:
    """As it was."""
    return KeptRequest(*_unpack(value))


def pack_answer(completion: Mapping[str, Json]) -> bytes:
    """For the database."""
    return _pack(completion)


def unpack_answer(value: bytes) -> dict[str, Json]:
    """As it was."""
    completion: dict[str, Json] = _unpack(value)
    return completion


def usage_of(completion: Mapping[str, Json]) -> Usage:
    """What the server says that it took."""
    said = completion.get("usage") or {}
    return Usage(_count(said.get("prompt_tokens")), _count(said.get("completion_tokens")))


def answered_call(request: KeptRequest, completion: Mapping[str, Json]) -> AnsweredCall:
    """What training/rollout/histories.py makes sequences of."""
    from openai.types.chat import ChatCompletion

    return AnsweredCall(
        tuple(request.messages), request.tools, ChatCompletion.model_validate(completion), usage_of(completion)
    )


def _count(said: Json) -> int:
    """What other servers say may be anything."""
    return said if isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= _MOST_TOKENS else 0


def _pack(value: Json) -> bytes:
    packer = zlib.compressobj(_LEVEL, memLevel=_MEMORY)
    return packer.compress(orjson.dumps(value)) + packer.flush()


def _unpack(value: bytes) -> Json:
    return json.loads(zlib.decompress(value))
