"""One rollout: the policy attempts a scenario, tool call by tool call. A failed rollout is data, not an exception."""

import asyncio
import itertools
import math
import time
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import structlog

from learnloop_service.environment.base import (
    Environment,
    Episode,
    EpisodeFailed,
    Json,
    OpenedEpisode,
    Scenario,
    TextEpisode,
    ToolError,
)
from learnloop_service.environment.genai_spans import invoke_agent
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.budget import BudgetReached, Reservation, Unreserved
from learnloop_service.training.prompt import Opening, Prompt, opening
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.recorded_calls import RecordedCalls
from learnloop_service.training.rollout.agents import own_loop, remote
from learnloop_service.training.rollout.agents.base import Agent
from learnloop_service.training.rollout.agents.remote import RemoteRollouts, RemoteTask, RolloutName
from learnloop_service.training.rollout.chat import Chat, message_of
from learnloop_service.training.rollout.environment_calls import lasting_timeout, off_loop, watched
from learnloop_service.training.rollout.episode_tools import call_tool, full_context, out_of_turns
from learnloop_service.training.rollout.fork import Fork, ForkReached, NoModel, ReplayDiffers, ReplayedCalls
from learnloop_service.training.rollout.histories import note_delivery
from learnloop_service.training.rollout.model_calls import ModelCalls, Sampling
from learnloop_service.training.types import FailureKind, Rollout, RolloutFailure

if TYPE_CHECKING:
    from art import Trajectory
    from openai.types.chat.chat_completion import Choice

_RESTARTS = 6
"""Maximum number of restarts of a rollout whose endpoint restarted and lost its conversation state."""
_LONGEST_PAUSE_S = 15.0
_MODEL_NOT_FOUND_STATUSES = (404, 410)
"""HTTP statuses that mean that the model or checkpoint does not exist, or that its files are lost."""
_SAMPLER_UNAVAILABLE = "sampler_unavailable"
"""Error code of an engine that is up while the process that samples for it is not."""

Player = Agent | RemoteRollouts
"""A replacement for the built-in loop: an agent that owns its loop, here or elsewhere."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Limits of a rollout, and the sampling temperature of its model."""

    max_turns: int | None = None
    """Maximum number of turns. None takes the environment's default."""
    max_completion_tokens: int = 256
    """Maximum number of tokens per reply."""
    timeout_s: float = 300.0
    temperature: float = 1.0


async def rollout(
    environment: Environment,
    scenario: Scenario,
    chat: Chat,
    limits: RolloutLimits | None = None,
    *,
    id: str,
    seed: int,
    reservation: Reservation | None = None,
    recorded: RecordedCalls | None = None,
    agent: Player | None = None,
    prompt: Prompt | None = None,
    fork: Fork | None = None,
    name: RolloutName | None = None,
    now: Callable[[], float] = time.time,
) -> Rollout:
    """Make one rollout.

    Cancellation passes through; any other error during the attempt becomes the rollout's `failure`. `agent` is an agent
    that owns its loop, here or elsewhere; None takes the built-in loop. `prompt` replaces texts of the environment;
    of an agent's rollout, the metric `undelivered_parts` counts those of its parts that were not in the first request.
    `name` stays the same when the rollout is repeated (default: derived from `id`), and `recorded` holds the answers
    that its model gave before. With `fork` the rollout begins with the recorded turns before it; only the loops of
    this process can be forked. `now` returns the time for `started_at`, in seconds since the epoch.

    Raises the environment's errors if it cannot open the scenario or report its outcome, BudgetReached if the next
    request does not fit the reservation, and ReplayDiffers if the environment does not repeat what is before the fork.
    """
    limits, reservation = limits or RolloutLimits(), reservation or Unreserved()
    started_at, clock = now(), time.monotonic()
    attempt = _Attempt(environment, scenario, id, limits, fork, prompt)
    if (late := await attempt.open()) is not None:
        seconds = time.monotonic() - clock
        return Rollout(id, scenario, _empty_trajectory(id, scenario), {}, late, started_at, seconds)
    if isinstance(agent, RemoteRollouts):
        playing = attempt.play_elsewhere(agent, name or RolloutName(0, id), chat.model, seed, reservation)
    else:
        # An endpoint that keeps conversation state and takes no token ids must serve every turn of a conversation.
        recorded = (recorded or RecordedCalls()) if chat.tells_token_ids or not chat.remembers else None
        restarts = _RESTARTS if chat.remembers else 0
        playing = attempt.play(agent, chat, seed, reservation, recorded, restarts)
    with invoke_agent(
        environment.name, model=chat.model, rollout_id=id, scenario_id=scenario.id, task=scenario.task
    ) as traced:
        failure = await _failure_of(playing, limits.timeout_s)
        outcome, failure = await _outcome_of(attempt.episode, failure, limits.timeout_s)
        traced.output = {"outcome": dict(outcome), "error": failure and failure.message}
    waited = time.monotonic() - clock
    seconds = float(attempt.trajectory.metrics.setdefault("duration", waited))
    return Rollout(id, scenario, attempt.trajectory, outcome, failure, started_at + max(0.0, waited - seconds), seconds)


async def replay(
    environment: Environment,
    scenario: Scenario,
    fork: Fork,
    limits: RolloutLimits,
    agent: Agent | None = None,
    prompt: Prompt | None = None,
) -> None:
    """Execute the turns before the fork, without a model. `prompt` is the one of the recorded rollout.

    Raises ReplayDiffers if the environment does not repeat them, TimeoutError, and the environment's errors.
    """
    attempt = _Attempt(environment, scenario, "replay", limits, fork, prompt)
    async with lasting_timeout(limits.timeout_s):
        await attempt.restart()
    with suppress(ForkReached):
        await attempt.play(agent, NoModel(), 0, Unreserved(), None, 0)


class _Attempt:
    """An episode and its trajectory. A restart replaces both."""

    episode: Episode
    trajectory: "Trajectory"
    opening: Opening

    def __init__(
        self,
        environment: Environment,
        scenario: Scenario,
        id: str,
        limits: RolloutLimits,
        fork: Fork | None,
        prompt: Prompt | None,
    ) -> None:
        self._environment = environment
        self._scenario = scenario
        self._id = id
        self._limits = limits
        self._fork = fork
        self._prompt = prompt
        self._sampling = Sampling(limits.temperature, limits.max_completion_tokens)

    async def open(self) -> RolloutFailure | None:
        """Begin the episode. Returns a failure if the environment takes too long."""
        timeout_s = self._limits.timeout_s
        try:
            async with lasting_timeout(timeout_s):
                await self.restart()
        except TimeoutError as error:
            return RolloutFailure(FailureKind.TIMEOUT, f"no episode within {timeout_s:g} s{_notes(error)}")
        return None

    async def restart(self) -> None:
        """Start over with a fresh episode and an empty trajectory."""
        environment = self._environment
        self.episode = await off_loop(environment, environment.episode, self._scenario, self._limits.max_turns)
        self.trajectory = _empty_trajectory(self._id, self._scenario)
        # An episode that is not open yet does not have its tools, so its prompt cannot be put in place.
        await self._begin(None if isinstance(self.episode, OpenedEpisode) else self._prompt)

    async def _begin(self, prompt: Prompt | None) -> None:
        """Put the opening messages and the tools into the trajectory. Raises InvalidPrompt."""
        messages = await off_loop(self.episode, self.episode.messages)
        self.opening = await off_loop(self.episode, opening, self.episode, prompt, messages)
        self.trajectory.messages_and_choices = [*self.opening.messages]  # type: ignore[list-item]
        self.trajectory.tools = self.opening.tools  # type: ignore[assignment]

    async def play_elsewhere(
        self, agent: RemoteRollouts, name: RolloutName, model: str, seed: int, reservation: Reservation
    ) -> RolloutFailure | None:
        """Have an agent play the attempt that runs elsewhere."""
        if self._fork is not None:
            raise ValueError("an agent that runs elsewhere cannot be forked")
        max_turns, timeout_s = self.episode.max_turns, self._limits.timeout_s
        await self._begin(self._prompt)  # nothing of its episode has to be opened
        texts = self.opening.texts
        task = RemoteTask(name, self._scenario, model, self._sampling, seed, max_turns, timeout_s, texts)
        return await remote.play(agent, task, self.episode, self.trajectory, reservation)

    async def play(
        self,
        agent: Agent | None,
        chat: Chat,
        seed: int,
        reservation: Reservation,
        recorded: RecordedCalls | None,
        restarts: int,
    ) -> None:
        """Play the attempt, and start over, at most `restarts` times, when the endpoint was unreachable.

        Raises the error that ended the attempt: TimeoutError, or the endpoint's if that took from the time.
        """
        away: Exception | None = None
        recorded = recorded if self._fork is None else ReplayedCalls(self._fork)
        try:
            async with lasting_timeout(self._limits.timeout_s) as limit:
                for restart in itertools.count():
                    metrics = self.trajectory.metrics
                    calls = ModelCalls(chat, self._sampling, Random(seed), reservation, metrics, recorded)
                    try:
                        return await self._play_once(agent, calls, limit)
                    except _endpoint_errors() as error:
                        if restart == restarts:
                            raise
                        away = error
                        log.info("rollout restarts: its endpoint was away", rollout_id=self._id, error=str(error))
                    await asyncio.sleep(min(0.5 * 2**restart, _LONGEST_PAUSE_S))
                    await self.restart()
        except TimeoutError:
            if away is None:
                raise
            raise away from None

    async def _play_once(self, agent: Agent | None, calls: ModelCalls, limit: asyncio.Timeout) -> None:
        async with _opened_episode(self.episode, limit) as is_open_now:
            if is_open_now:
                await self._begin(self._prompt)
            if agent is None:
                note_delivery(self.trajectory, self.opening.texts, self.opening.messages, self.opening.tools or ())
                await _play(self.episode, self.trajectory, calls, self._fork)
            else:
                await own_loop.play(agent, self.episode, self.opening, self.trajectory, calls)


def _empty_trajectory(id: str, scenario: Scenario) -> "Trajectory":
    trajectory: Trajectory = import_art().Trajectory(messages_and_choices=[])
    trajectory.metadata |= {"rollout_id": id, "scenario_id": scenario.id}
    zero = {"turns": 0, "prompt_tokens": 0, "completion_tokens": 0, "sampling_s": 0.0, "tools_s": 0.0}
    trajectory.metrics |= zero
    return trajectory


async def _outcome_of(
    episode: Episode, failure: RolloutFailure | None, timeout_s: float
) -> tuple[Mapping[str, Json], RolloutFailure | None]:
    """Return the episode's outcome, and why the rollout failed; the outcome is empty if it does not return in time."""
    try:
        async with lasting_timeout(timeout_s):
            return await off_loop(episode, episode.outcome), failure
    except TimeoutError as error:
        why = f"no outcome within {timeout_s:g} s{_notes(error)}"
        return {}, failure or RolloutFailure(FailureKind.TIMEOUT, why)


def _notes(error: TimeoutError) -> str:
    """Return which call of the environment did not return in time, as the end of a sentence."""
    return "".join(f": {note}" for note in getattr(error.__cause__, "__notes__", ()))


async def _failure_of(playing: Awaitable[RolloutFailure | None], timeout_s: float) -> RolloutFailure | None:
    """Return why the rollout failed, or None if it did not. Raises BudgetReached, ReplayDiffers."""
    try:
        return await playing
    except (BudgetReached, ReplayDiffers):
        raise
    except TimeoutError as error:
        return RolloutFailure(FailureKind.TIMEOUT, f"the rollout took longer than {timeout_s:g} s{_notes(error)}")
    except Exception as error:
        return RolloutFailure(_failure_kind(error), f"{type(error).__name__}: {error}")


@asynccontextmanager
async def _opened_episode(episode: Episode, limit: asyncio.Timeout) -> AsyncIterator[bool]:
    """Open the episode, and say whether it had to be opened. The time limit is paused until it is open. Raises
    EpisodeFailed."""
    if not isinstance(episode, OpenedEpisode):
        yield False
        return
    now = asyncio.get_running_loop().time
    remaining_s = (limit.when() or math.inf) - now()
    limit.reschedule(None)
    try:
        await watched(episode, episode.open)
        limit.reschedule(now() + remaining_s)
        yield True
    finally:
        await watched(episode, episode.close)


def _endpoint_errors() -> tuple[type[Exception], ...]:
    """Return the client's errors for an endpoint without a server, or with one that is starting or stopping."""
    import openai

    return openai.APIConnectionError, openai.InternalServerError


def _failure_kind(error: Exception) -> FailureKind:
    import openai

    if isinstance(error, openai.APIConnectionError) or getattr(error, "code", None) == _SAMPLER_UNAVAILABLE:
        return FailureKind.BACKEND_AWAY
    if isinstance(error, own_loop.AgentFailed):
        return FailureKind.AGENT
    if isinstance(error, openai.InternalServerError):
        return FailureKind.BACKEND_ERROR
    if isinstance(error, EpisodeFailed):
        return FailureKind.ENVIRONMENT
    gone = isinstance(error, openai.APIStatusError) and error.status_code in _MODEL_NOT_FOUND_STATUSES
    return FailureKind.MODEL_NOT_FOUND if gone else FailureKind.OTHER


async def _play(episode: Episode, trajectory: "Trajectory", calls: ModelCalls, fork: Fork | None = None) -> None:
    """Run the built-in loop: execute and answer each tool call of the model until the episode is over."""
    if fork is not None:
        trajectory.messages_and_choices = [*fork.edited(0, trajectory.messages_and_choices)]  # type: ignore[arg-type, list-item]
    messages: list[dict[str, Json]] = list(trajectory.messages_and_choices)  # type: ignore[arg-type]
    while trajectory.metrics["turns"] < episode.max_turns:
        try:
            completion = await calls.complete(messages, trajectory.tools or ())
        except Exception as error:
            if (detail := full_context(error)) is None:
                raise
            return await off_loop(episode, episode.end, "full_context", detail)
        choice = completion.choices[0]
        trajectory.messages_and_choices.append(choice)
        clock = time.monotonic()
        results, over = await execute_reply(episode, choice)
        trajectory.metrics["tools_s"] += time.monotonic() - clock
        if fork is not None:
            results = fork.edited(len(trajectory.messages_and_choices), results)
        trajectory.messages_and_choices += results  # type: ignore[arg-type]
        if over:
            return
        messages += [message_of(choice), *results]
    await off_loop(episode, episode.end, "out_of_turns", out_of_turns(episode))


async def execute_reply(episode: Episode, choice: "Choice") -> tuple[list[dict[str, Json]], bool]:
    """Execute the calls of a reply. Return the messages that answer it, and whether the episode is over."""
    calls = [call for call in choice.message.tool_calls or () if call.type == "function"]
    if not calls:
        if isinstance(episode, TextEpisode):
            answered = await off_loop(episode, episode.reply, choice.message.content or "")
            return [] if answered.final else [{"role": "user", "content": answered.content}], answered.final
        excerpt = (choice.message.content or "")[:200]
        why = (choice.model_extra or {}).get(MALFORMED) or "There is no tool call in the reply."
        await off_loop(episode, episode.end, "malformed", f"{why} ({choice.finish_reason}): {excerpt!r}")
        return [], True
    results: list[dict[str, Json]] = []
    for call in calls:
        try:
            result = await call_tool(episode, call.function.name, call.function.arguments, call.id)
        except ToolError as error:
            await off_loop(episode, episode.end, "malformed", str(error))
            return results, True
        if result.final:
            return results, True
        results.append({"role": "tool", "tool_call_id": call.id, "content": result.content})
    return results, False


def sampled_tokens(rollout: Rollout) -> list[dict[str, Json]]:
    """Return the sampled tokens of each turn for which the server reported log-probabilities.

    Each entry has the index of its `message`, and the `texts` and `logprobs` (natural, four digits) of its tokens. A
    character that spans several tokens is in the text of the last one.
    """
    turns = []
    for index, item in enumerate(rollout.trajectory.messages_and_choices):
        logprobs = None if isinstance(item, dict) else item.logprobs
        if logprobs is None or not logprobs.content:
            continue
        decode = getincrementaldecoder("utf-8")("replace").decode
        texts = [token.token if token.bytes is None else decode(bytes(token.bytes)) for token in logprobs.content]
        turns.append(
            {"message": index, "texts": texts, "logprobs": [round(token.logprob, 4) for token in logprobs.content]}
        )
    return turns


def total(rollouts: Iterable[Rollout], metric: str) -> float:
    """Sum one metric over the trajectories."""
    return sum(float(rollout.trajectory.metrics.get(metric, 0)) for rollout in rollouts)


def failed(rollouts: Sequence[Rollout]) -> int:
    """Count the failed rollouts."""
    return sum(rollout.failure is not None for rollout in rollouts)


def lost(rollouts: Iterable[Rollout]) -> dict[str, int]:
    """Count the rollouts that were lost for reasons that are not the agent's, by kind of failure."""
    kinds = (rollout.failure.kind for rollout in rollouts if rollout.failure is not None)
    return dict(sorted(Counter(str(kind) for kind in kinds if kind.is_lost).items()))
