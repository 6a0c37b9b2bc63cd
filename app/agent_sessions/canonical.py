"""The canonical form of a request: the same question of an agent that was started again has the same digest.

What only concerns the form of the answer (streaming, log-probabilities) and names that the session decides (the model)
are not part of it; so a client may ask for the same answer in another form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from random import Random
from typing import NamedTuple

from app.db.json_text import flaw
from app.errors import InvalidRequest
from environment.json_type import Json
from training.protocol.responses.parameters import NO_EFFECT
from training.rollout.chat import identity
from training.rollout.model_calls import Message, Sampling, seed_of_call

_NOT_ASKED = frozenset(
    {"messages", "tools", "model", "stream", "stream_options", "logprobs", "return_token_ids"} | NO_EFFECT
)
_OF_THE_REPLY = ("n", "parallel_tool_calls", "response_format", "stop", "tool_choice")
"""What an agent may say of a reply where the run decides how it is sampled."""


_LEAST_SEED = -(2**63)
"""As the engine takes it, and the database holds it."""


_written = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""As json.dumps, which makes an encoder each time."""


class BadRequestBody(InvalidRequest):
    """OpenAI answers with 400 here, not 422."""

    status = 400


@dataclass(frozen=True)
class CanonicalRequest:
    """What is asked of the model. `parameters` have neither messages nor tools."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    parameters: Mapping[str, Json]
    digest: str

    @cached_property
    def conversations(self) -> Sequence[bytes]:
        """As the function has it."""
        return conversations(self.messages, self.tools)


def conversations(messages: Sequence[Message], tools: Sequence[Json]) -> Sequence[bytes]:
    """Digests of the conversation up to and with each message, as the model sees it."""
    digest, found = blake2b(json.dumps(tools, sort_keys=True).encode(), digest_size=16).digest(), []
    for message in messages:
        digest = conversation_with(digest, message)
        found.append(digest)
    return found


def conversation_with(before: bytes, message: Message) -> bytes:
    """The digest of the conversation that goes on with the message."""
    return blake2b(before + identity(message).encode(), digest_size=16).digest()


def canonical(body: Mapping[str, Json], sampling: Sampling | None) -> CanonicalRequest:
    """The canonical form of a chat completion request. Raises BadRequestBody.

    `sampling` is the session's; without it the client's own parameters count.
    """
    if (why := flaw(dict(body))) is not None:
        raise BadRequestBody(("body",), f"The body cannot be stored: {why}.")
    messages, tools = body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise BadRequestBody(("body", "messages"), "messages must be a list of objects, and not empty.")
    if not isinstance(tools, list) or not all(isinstance(each, dict) for each in tools):
        raise BadRequestBody(("body", "tools"), "tools must be a list of objects.")
    plain, parameters = tuple(map(_message, messages)), _parameters(body, sampling)
    asked = [[_compared(each) for each in plain], tools, parameters]
    return CanonicalRequest(plain, tuple(tools), parameters, sha256(_written(asked).encode()).hexdigest())


class CallSeeds(NamedTuple):
    """The seed of a call, which depends on its number in the session.

    An agent that holds one conversation makes call n with n - 1 replies in it. Such calls have the seeds of the
    built-in loop, so that the model answers the same to an agent that asks the same. The seed of any other call comes
    from what is asked: parallel calls need no order for it.
    """

    turn: int
    """The number that it has in a conversation which is all that the session asks, from 1."""
    in_turn: int
    otherwise: int

    def of(self, number: int) -> int:
        """Of the session's call of that number, from 1."""
        return self.in_turn if number == self.turn else self.otherwise


def seeds_of_call(session_seed: int, request: CanonicalRequest, occurrence: int) -> CallSeeds:
    """For the given occurrence of the request's digest. A seed that the client gives counts."""
    turn = 1 + sum(message["role"] == "assistant" for message in request.messages)
    given = request.parameters.get("seed")
    if isinstance(given, int):
        return CallSeeds(turn, given, given)
    by_content = Random(f"{session_seed}:{request.digest}:{occurrence}").getrandbits(53)
    return CallSeeds(turn, seed_of_call(session_seed, turn), by_content)


def _parameters(body: Mapping[str, Json], sampling: Sampling | None) -> dict[str, Json]:
    given = {name: value for name, value in body.items() if value is not None and name not in _NOT_ASKED}
    seed = given.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not _LEAST_SEED <= seed < -_LEAST_SEED:
        raise BadRequestBody(("body", "seed"), "seed must be a whole number from -2**63 to 2**63 - 1.")
    if sampling is None:
        return given
    limit = given.get("max_completion_tokens") or given.get("max_tokens") or sampling.max_tokens
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise BadRequestBody(("body", "max_tokens"), "max_tokens must be a positive whole number.")
    kept = {name: given[name] for name in _OF_THE_REPLY if name in given}
    return {**kept, "max_tokens": min(limit, sampling.max_tokens), "temperature": sampling.temperature}


def _message(message: Message) -> Message:
    """Without members that say nothing; content that is text in parts is one text."""
    if not all(map(_is_call, message.get("tool_calls") or ())):
        raise BadRequestBody(("body", "messages"), "A tool call needs function.name and function.arguments as text.")
    plain = {name: value for name, value in message.items() if value not in (None, [], {}) and name != "token_ids"}
    content = message.get("content")
    if isinstance(content, list) and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    return {**plain, "role": message.get("role"), "content": content}


def _is_call(call: Json) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if function is None:
        return isinstance(call, dict) and call.get("type") not in (None, "function")
    return isinstance(function, dict) and all(isinstance(function.get(name), str) for name in ("name", "arguments"))


def _is_text(part: Json) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _compared(message: Message) -> Json:
    """Clients that decode the arguments of a call write them in their own way again."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "content": message["content"] or "", "tool_calls": [_compared_call(call) for call in calls]}


def _compared_call(call: Json) -> Json:
    try:
        function = call["function"]
        return [call.get("id"), function["name"], json.loads(function["arguments"])]
    except (TypeError, KeyError, ValueError, AttributeError, RecursionError):
        return call
