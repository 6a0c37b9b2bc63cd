"""The canonical form of a request. An agent that restarts and asks the same question gets the same digest.

Parameters that concern only the form of the answer (streaming, log-probabilities) and names that the session determines
(the model) are left out, so a client can ask for the same answer in another form.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b, sha256
from random import Random
from typing import NamedTuple

from learnloop_service.app.db.json_text import flaw
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.protocol.chat_reader import read_messages, read_tool_choice
from learnloop_service.training.protocol.responses.parameters import NO_EFFECT
from learnloop_service.training.replacing import replaced
from learnloop_service.training.rollout.chat import identity
from learnloop_service.training.rollout.model_calls import Message, Sampling, seed_of_call

_SERVER_HINTS = frozenset({"reasoning_effort", "verbosity"})
"""Hints that are passed on, because the servers of other backends can honour them; the engine does not."""
_IGNORED_PARAMETERS = frozenset(
    {"messages", "tools", "model", "stream", "stream_options", "logprobs", "return_token_ids"}
    | (NO_EFFECT - _SERVER_HINTS)
)
_AGENT_PARAMETERS = ("n", "parallel_tool_calls", "response_format", "stop", "tool_choice")
"""Parameters that an agent can still set when the run determines the sampling."""
_CHOICES = frozenset({"temperature", "top_p", "top_k", "min_p", "seed"})
"""Parameters by which a client chooses among the answers that are possible."""
EXPLORED = Sampling(temperature=1.0, max_tokens=2**30)
"""Sampling of a session that explores: only those parameters are not as its client asks."""


_LEAST_SEED = -(2**63)
"""Smallest seed that the engine and the database accept."""


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""Encodes like json.dumps, which would create a new encoder for each call."""


class BadRequestBody(InvalidRequest):
    """The body is invalid. The status is 400, as in OpenAI's API, instead of 422."""

    status = 400


@dataclass(frozen=True)
class CanonicalRequest:
    """A request to the model. `parameters` does not include messages and tools."""

    messages: tuple[Message, ...]
    tools: tuple[Json, ...]
    parameters: Mapping[str, Json]
    digest: str
    missing: tuple[str, ...] | None = None
    """Parts of the session's prompt whose replaced texts the request does not have; None if nothing is replaced."""

    @cached_property
    def conversations(self) -> Sequence[bytes]:
        """Digests of the conversation, as the function `conversations` returns them."""
        return conversations(self.messages, self.tools)


def conversations(messages: Sequence[Message], tools: Sequence[Json]) -> Sequence[bytes]:
    """Return a digest of the conversation up to and including each message, as the model sees it."""
    digest, digests = blake2b(json.dumps(tools, sort_keys=True).encode(), digest_size=16).digest(), []
    for message in messages:
        digest = conversation_with(digest, message)
        digests.append(digest)
    return digests


def conversation_with(before: bytes, message: Message) -> bytes:
    """Return the digest of the conversation extended by the message."""
    return blake2b(before + identity(message).encode(), digest_size=16).digest()


def canonical(body: Mapping[str, Json], sampling: Sampling | None, prompt: Prompt | None = None) -> CanonicalRequest:
    """Convert a chat completion request to its canonical form. Raises BadRequestBody.

    `sampling` is the session's; if None, the client's own parameters apply. The texts of `prompt` are put in place of
    those that it replaces.
    """
    if (why := flaw(dict(body))) is not None:
        raise BadRequestBody(("body",), f"The body cannot be stored: {why}.")
    messages, tools = body.get("messages"), body.get("tools") or []
    if not isinstance(messages, list) or not messages or not all(isinstance(message, dict) for message in messages):
        raise BadRequestBody(("body", "messages"), "messages must be a list of objects, and not empty.")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRequestBody(("body", "tools"), "tools must be a list of objects.")
    try:
        plain: Sequence[Message] = tuple(map(_message, read_messages(messages)))
        parameters = _parameters(body, sampling)
    except ValueError as error:
        raise BadRequestBody(("body", "messages"), f"messages: {error}.") from None
    missing: tuple[str, ...] | None = None
    if prompt is not None:
        plain, tools, missing = replaced(plain, tools, prompt)
    digest = sha256(_encode([[_digest_form(message) for message in plain], tools, parameters]).encode()).hexdigest()
    return CanonicalRequest(tuple(plain), tuple(tools), parameters, digest, missing)


class CallSeeds(NamedTuple):
    """The seed of a call, which depends on the call's number in the session.

    If an agent holds a single conversation, its call n contains n - 1 replies. Such calls get the seeds of the built-in
    loop, so the model gives the same answers to an agent that asks the same questions. The seed of any other call is
    derived from its content, so parallel calls can come in any order.
    """

    turn: int
    """Number that the call has, from 1, if the session consists of a single conversation."""
    in_turn: int
    otherwise: int

    def of(self, number: int) -> int:
        """Return the seed for the session's call with that number, from 1."""
        return self.in_turn if number == self.turn else self.otherwise


def seeds_of_call(session_seed: int, request: CanonicalRequest, occurrence: int) -> CallSeeds:
    """Return the seeds for the given occurrence of the request's digest. A seed from the client takes precedence."""
    turn = 1 + sum(message["role"] == "assistant" for message in request.messages)
    client_seed = request.parameters.get("seed")
    if isinstance(client_seed, int):
        return CallSeeds(turn, client_seed, client_seed)
    by_content = Random(f"{session_seed}:{request.digest}:{occurrence}").getrandbits(53)
    return CallSeeds(turn, seed_of_call(session_seed, turn), by_content)


def _parameters(body: Mapping[str, Json], sampling: Sampling | None) -> dict[str, Json]:
    parameters = {name: value for name, value in body.items() if value is not None and name not in _IGNORED_PARAMETERS}
    if "tool_choice" in parameters:
        parameters["tool_choice"] = read_tool_choice(parameters["tool_choice"])
    seed = parameters.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not _LEAST_SEED <= seed < -_LEAST_SEED:
        raise BadRequestBody(("body", "seed"), "seed must be a whole number from -2**63 to 2**63 - 1.")
    if sampling is None:
        return parameters
    if sampling == EXPLORED:
        free = {name: value for name, value in parameters.items() if name not in _CHOICES}
        return {**free, "temperature": sampling.temperature}
    limit = parameters.get("max_completion_tokens") or parameters.get("max_tokens") or sampling.max_tokens
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise BadRequestBody(("body", "max_tokens"), "max_tokens must be a positive whole number.")
    agent_parameters = {name: parameters[name] for name in _AGENT_PARAMETERS if name in parameters}
    return {**agent_parameters, "max_tokens": min(limit, sampling.max_tokens), "temperature": sampling.temperature}


def _message(message: Message) -> Message:
    """Return the message without the token ids that a client keeps."""
    plain = {name: value for name, value in message.items() if name != "token_ids"}
    return {**plain, "role": message.get("role"), "content": message.get("content")}


def _digest_form(message: Message) -> Json:
    """Return the part of the message that the digest covers. Arguments of tool calls are decoded, because clients that
    decode them encode them differently."""
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
