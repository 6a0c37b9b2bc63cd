"""A rollout: the policy attempts a scenario, tool call by tool call. A failed one is data, not an exception."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from environment.base import Environment, Episode, Json, Scenario, TextEpisode, ToolError
from environment.genai_spans import Reply, execute_tool, invoke_agent
from environment.genai_spans import chat as chat_span
from training.backends.art_import import import_art
from training.backends.base import Endpoint
from training.budget import BudgetReached, Reservation, Unreserved, Usage
from training.types import Failure, FailureKind, Rollout

if TYPE_CHECKING:
    from art import Trajectory
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_message_function_tool_call import Function

_RETRIES = 2
"""Of one request, on connection errors, 429 and 5xx, with the client's back-off."""
_RESTARTS = 6
"""Of a rollout whose endpoint restarted and lost what it remembered: all turns must come from one process."""
_LONGEST_PAUSE_S = 15.0
_GONE = (404, 410)
"""There is no such model or checkpoint, or its files are lost."""

log = structlog.get_logger(__name__)


class Chat(Protocol):
    """A model that answers chat completions in OpenAI's form."""

    @property
    def model(self) -> str:
        """Its name in requests."""

    @property
    def remembers(self) -> bool:
        """As Endpoint.remembers: a rollout restarts after the endpoint was away."""

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        """The response to a request, whose `model` is the name. Raises what the client raises."""


@dataclass(frozen=True, slots=True)
class EndpointChat:
    """An OpenAI client and the model that it asks."""

    client: "AsyncOpenAI"
    model: str
    remembers: bool = False

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        from openai.types.chat import ChatCompletion

        # Not `chat.completions.create`: it goes through every field of every message to translate what is as it should
        # be.
        return await self.client.post("/chat/completions", cast_to=ChatCompletion, body={**body, "logprobs": True})


@asynccontextmanager
async def open_chat(endpoint: Endpoint, concurrency: int = 1) -> AsyncIterator[EndpointChat]:
    """Connections to the endpoint for `concurrency` simultaneous requests, closed at the end."""
    import httpx
    from openai import AsyncOpenAI

    from training.http_pools import SinglePools

    http = httpx.AsyncClient(
        limits=httpx.Limits(max_connections=concurrency),
        timeout=None,
        mounts={"http://": SinglePools(concurrency)},
        verify=endpoint.base_url.startswith("https"),  # reading the certificates takes 20 ms
    )
    async with AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        http_client=http,
        max_retries=0 if endpoint.remembers else _RETRIES,
    ) as client:
        yield EndpointChat(client, endpoint.model, endpoint.remembers)


async def rollout(
    environment: Environment,
    scenario: Scenario,
    chat: Chat,
    *,
    id: str,
    seed: int,
    max_turns: int | None = None,
    temperature: float = 1.0,
    max_completion_tokens: int = 256,
    timeout_s: float = 300.0,
    reservation: Reservation | None = None,
    now: Callable[[], float] = time.time,
) -> Rollout:
    """One rollout. Cancellation passes through; whatever else goes wrong on the way is the rollout's `failure`. `now`
    dates it, in seconds since the epoch.

    Raises what the environment raises if it cannot open the scenario or tell its outcome, and BudgetReached where the
    next request does not fit the reservation.
    """
    request = {"temperature": temperature, "max_tokens": max_completion_tokens}
    started_at, clock = now(), time.monotonic()
    failure: Failure | None = None
    episode, trajectory = _open(environment, scenario, id, max_turns)
    with invoke_agent(
        environment.name, model=chat.model, rollout_id=id, scenario_id=scenario.id, task=scenario.task
    ) as traced:
        try:
            async with asyncio.timeout(timeout_s):
                for restart in itertools.count():
                    try:
                        await _play(episode, chat, trajectory, request, Random(seed), reservation or Unreserved())
                        break
                    except _endpoint_errors() as error:
                        if not chat.remembers or restart == _RESTARTS:
                            raise
                        log.info("rollout restarts: its endpoint was away", rollout_id=id, error=str(error))
                    await asyncio.sleep(min(0.5 * 2**restart, _LONGEST_PAUSE_S))
                    episode, trajectory = _open(environment, scenario, id, max_turns)
        except BudgetReached:
            raise
        except TimeoutError:
            failure = Failure(FailureKind.TIMEOUT, f"the rollout took longer than {timeout_s:g} s")
        except Exception as error:
            failure = Failure(_kind(error), f"{type(error).__name__}: {error}")
        outcome = episode.outcome()
        traced.output = {"outcome": dict(outcome), "error": failure and failure.message}
    seconds = time.monotonic() - clock
    trajectory.metrics["duration"] = seconds
    return Rollout(id, scenario, trajectory, outcome, failure, started_at, seconds)


def _open(environment: Environment, scenario: Scenario, id: str, max_turns: int | None) -> tuple[Episode, "Trajectory"]:
    """A fresh episode and its empty trajectory."""
    art = import_art()
    episode = environment.episode(scenario, max_turns)
    tools = [tool.openai() for tool in episode.tools]
    trajectory = art.Trajectory(messages_and_choices=episode.messages(), tools=tools or None)
    trajectory.metadata |= {"rollout_id": id, "scenario_id": scenario.id}
    trajectory.metrics |= {"turns": 0, "prompt_tokens": 0, "completion_tokens": 0, "sampling_s": 0.0, "tools_s": 0.0}
    return episode, trajectory


def _endpoint_errors() -> tuple[type[Exception], ...]:
    """What the client raises when there is no server at the endpoint, or one that is starting or stopping."""
    import openai

    return openai.APIConnectionError, openai.InternalServerError


def _kind(error: Exception) -> FailureKind:
    import openai

    if isinstance(error, openai.APIConnectionError):
        return FailureKind.BACKEND_AWAY
    gone = isinstance(error, openai.APIStatusError) and error.status_code in _GONE
    return FailureKind.MODEL_NOT_FOUND if gone else FailureKind.OTHER


async def _play(
    episode: Episode,
    chat: Chat,
    trajectory: "Trajectory",
    request: dict[str, Any],
    seeds: Random,
    reservation: Reservation,
) -> None:
    messages: list[dict[str, Json]] = list(trajectory.messages_and_choices)  # type: ignore[arg-type]
    known, fresh = 0, [*messages, {"tools": trajectory.tools}]
    while trajectory.metrics["turns"] < episode.max_turns:
        await reservation.room_for(lambda known=known, fresh=fresh: _most(known, fresh, request["max_tokens"]))  # type: ignore[misc]
        seeded = request | {"seed": seeds.getrandbits(53)}
        with chat_span("openai", model=chat.model, messages=messages, parameters=seeded) as traced:
            choice, used = await _sample(chat, messages, trajectory, seeded)
            message = _as_message(choice)
            traced.output = Reply(message, choice.finish_reason, used.prompt_tokens, used.completion_tokens)
        reservation.spend(used)
        trajectory.messages_and_choices.append(choice)
        messages.append(message)
        clock = time.monotonic()
        results, over = await _execute(episode, choice)
        trajectory.metrics["tools_s"] += time.monotonic() - clock
        trajectory.messages_and_choices += results  # type: ignore[arg-type]
        if over:
            return
        messages += results
        known, fresh = used.tokens, results
    episode.end("out_of_turns", f"no final answer within {episode.max_turns} turns")


def _most(known: int, fresh: Sequence[Json], reply_tokens: int) -> Usage:
    """What a request takes at most: a token is at least a byte."""
    return Usage(known + len(json.dumps(fresh, ensure_ascii=False).encode()), reply_tokens)


async def _sample(
    chat: Chat, messages: list[dict[str, Json]], trajectory: "Trajectory", request: dict[str, Any]
) -> "tuple[Choice, Usage]":
    """The reply, and what it took."""
    clock = time.monotonic()
    tools = {"tools": trajectory.tools} if trajectory.tools else {}
    completion = await chat.complete({"model": chat.model, "messages": messages, **tools, **request})
    metrics = trajectory.metrics
    metrics["turns"] += 1
    metrics["sampling_s"] += time.monotonic() - clock
    used = Usage()
    if completion.usage:
        used = Usage(completion.usage.prompt_tokens, completion.usage.completion_tokens)
    metrics["prompt_tokens"] += used.prompt_tokens
    metrics["completion_tokens"] += used.completion_tokens
    return completion.choices[0], used


async def _execute(episode: Episode, choice: "Choice") -> tuple[list[dict[str, Json]], bool]:
    """The messages that answer the reply, and whether the episode is over."""
    calls = [call for call in choice.message.tool_calls or () if call.type == "function"]
    if not calls:
        if isinstance(episode, TextEpisode):
            answered = episode.reply(choice.message.content or "")
            return [] if answered.final else [{"role": "user", "content": answered.content}], answered.final
        said = (choice.message.content or "")[:200]
        episode.end("malformed", f"no tool call in the reply ({choice.finish_reason}): {said!r}")
        return [], True
    results: list[dict[str, Json]] = []
    for call in calls:
        try:
            with execute_tool(call.function.name, call_id=call.id, arguments=call.function.arguments) as traced:
                result = await episode.call(call.function.name, _arguments(call.function))
                traced.output = result.content
        except ToolError as error:
            episode.end("malformed", str(error))
            return results, True
        if result.final:
            return results, True
        results.append({"role": "tool", "tool_call_id": call.id, "content": result.content})
    return results, False


def _arguments(function: "Function") -> dict[str, Json]:
    """Raises ToolError."""
    try:
        arguments = json.loads(function.arguments)
        # Lone surrogates are JSON, but nothing that can be sent on or kept.
        json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments of {function.name} are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolError(f"the arguments of {function.name} are not an object")
    return arguments


def _as_message(choice: "Choice") -> dict[str, Json]:
    message: dict[str, Json] = {"role": "assistant", "content": choice.message.content}
    if choice.message.tool_calls:
        message["tool_calls"] = [call.model_dump(mode="json") for call in choice.message.tool_calls]
    return message


def messages_of(rollout: Rollout) -> list[dict[str, Json]]:
    """The whole conversation in OpenAI's form, without token-level data."""
    return [
        item if isinstance(item, dict) else _as_message(item)  # type: ignore[misc]
        for item in rollout.trajectory.messages_and_choices
    ]


def total(rollouts: Iterable[Rollout], metric: str) -> float:
    """The sum of one of the trajectories' metrics."""
    return sum(float(rollout.trajectory.metrics.get(metric, 0)) for rollout in rollouts)


def failed(rollouts: Sequence[Rollout]) -> int:
    """How many failed."""
    return sum(rollout.failure is not None for rollout in rollouts)
