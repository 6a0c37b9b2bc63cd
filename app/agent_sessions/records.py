"""The stored form of requests and answers: compressed JSON that keeps token ids and log-probabilities exact."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson

from learnloop_service.app.agent_sessions.canonical import CanonicalRequest
from learnloop_service.environment.json_type import Json
from learnloop_service.training.budget import Usage
from learnloop_service.training.rollout.model_calls import AnsweredCall, Message

_MOST_TOKENS = 2**31 - 1
_LEVEL = 1
"""zlib's fastest level, which already compresses log-probabilities to a fifth."""
_MEMORY = 4
"""zlib's memory level, of at most 9. Setting up the usual tables takes longer than compressing a typical call, and does
not make it smaller."""


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A recorded request."""

    messages: Sequence[Message]
    tools: Sequence[Json]
    parameters: Mapping[str, Json]
    missing: Sequence[str] | None = None
    """As of CanonicalRequest."""


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A recorded call."""

    number: int
    digest: str
    occurrence: int
    protocol: str
    request: KeptRequest
    seed: int
    completion: dict[str, Json] | None
    """The answer in OpenAI's format, with token ids and log-probabilities; None if not answered yet."""
    begun_at: datetime
    answered_at: datetime | None
    used: bool
    """Whether the last attempt made this request."""


def pack_request(request: CanonicalRequest) -> bytes:
    """Encode a request for the database."""
    added = () if request.missing is None else (request.missing,)
    return _pack([request.messages, request.tools, request.parameters, *added])


def unpack_request(value: bytes) -> KeptRequest:
    """Decode a request from the database."""
    return KeptRequest(*_unpack(value))


def pack_answer(completion: Mapping[str, Json]) -> bytes:
    """Encode an answer for the database."""
    return _pack(completion)


def unpack_answer(value: bytes) -> dict[str, Json]:
    """Decode an answer from the database."""
    completion: dict[str, Json] = _unpack(value)
    return completion


def usage_of(completion: Mapping[str, Json]) -> Usage:
    """Return the token usage that the server reported."""
    usage = completion.get("usage") or {}
    return Usage(_count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")))


def answered_call(request: KeptRequest, completion: Mapping[str, Json]) -> AnsweredCall:
    """Return the call in the form that training/rollout/histories.py builds sequences from."""
    from openai.types.chat import ChatCompletion

    return AnsweredCall(
        tuple(request.messages),
        request.tools,
        ChatCompletion.model_validate(completion),
        usage_of(completion),
        request.missing,
    )


def _count(count: Json) -> int:
    """Return a reported token count, or 0 if it is invalid. Other servers can report anything."""
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= _MOST_TOKENS else 0


def _pack(value: Json) -> bytes:
    packer = zlib.compressobj(_LEVEL, memLevel=_MEMORY)
    return packer.compress(orjson.dumps(value)) + packer.flush()


def _unpack(value: bytes) -> Json:
    return json.loads(zlib.decompress(value))
