"""Rollouts without a model: an agent written in code plays an episode by the rules of the built-in loop."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from json import dumps
from math import fsum

from learnloop_service.environment.base import (
    Environment,
    Episode,
    Json,
    OpenedEpisode,
    Outcome,
    Scenario,
    TextEpisode,
    Tool,
    ToolCall,
    ToolError,
)
from learnloop_service.judges.base import Candidate, Judge, checked
from learnloop_service.training.prompt import Opening, Prompt, opening
from learnloop_service.training.rollout.episode_tools import out_of_turns

Turn = ToolCall | str
"""An agent's turn: one tool call, or a reply in text."""


@dataclass(frozen=True, slots=True)
class View:
    """What an agent sees when it is asked for its next turn."""

    tools: Sequence[Tool]
    messages: Sequence[Mapping[str, Json]]
    takes_text: bool
    turns_left: int


Agent = Callable[[View], Turn]


@dataclass(frozen=True, slots=True)
class PlayedRollout:
    """One rollout. `ended_by` is the tool whose result was final, if there was one."""

    scenario: Scenario
    tools: Sequence[Tool]
    messages: Sequence[Mapping[str, Json]]
    outcome: Outcome
    ended_by: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Paid:
    """A rollout and its reward. `reward` is None if the judge gave no score; `unscored` then says why."""

    played: PlayedRollout
    parts: Mapping[str, float]
    reward: float | None
    success: bool
    unscored: str | None = None


async def play(
    environment: Environment, scenario: Scenario, agent: Agent, prompt: Prompt | None = None
) -> PlayedRollout:
    """Let the agent attempt the scenario, which begins with the prompt's texts in place of the environment's. Raises
    EpisodeFailed and InvalidPrompt."""
    clock = time.perf_counter()
    async with _open_episode(environment.episode(scenario)) as episode:
        begin = opening(episode, prompt)
        messages, ended_by = await _attempt(episode, agent, begin)
        outcome = episode.outcome()
    return PlayedRollout(scenario, begin.tool_list, messages, outcome, ended_by, time.perf_counter() - clock)


@asynccontextmanager
async def _open_episode(episode: Episode) -> AsyncIterator[Episode]:
    if not isinstance(episode, OpenedEpisode):
        yield episode
        return
    try:
        await episode.open()
        yield episode
    finally:
        await episode.close()


async def _attempt(episode: Episode, agent: Agent, begin: Opening) -> tuple[list[dict[str, Json]], str | None]:
    """Play the episode. Return the conversation, and the tool whose result ended it."""
    messages = begin.messages
    takes_text = isinstance(episode, TextEpisode)
    ended_by, over, turns = None, False, 0
    while not over and turns < episode.max_turns:
        turn = agent(View(begin.tool_list, messages, takes_text, episode.max_turns - turns))
        turns += 1
        if isinstance(turn, str):
            over = _reply(episode, messages, turn)
        else:
            over, final = await _call(episode, messages, turn, f"call_{turns}")
            ended_by = turn.name if final else None
        await asyncio.sleep(0)  # lets rollouts that are played concurrently alternate
    if not over:
        episode.end("out_of_turns", out_of_turns(episode))
    return messages, ended_by


def _reply(episode: Episode, messages: list[dict[str, Json]], text: str) -> bool:
    """Reply without a tool call. Return whether the episode is over."""
    messages.append({"role": "assistant", "content": text})
    if not isinstance(episode, TextEpisode):
        episode.end("malformed", "no tool call in the reply")
        return True
    result = episode.reply(text)
    if not result.final:
        messages.append({"role": "user", "content": result.content})
    return result.final


async def _call(episode: Episode, messages: list[dict[str, Json]], turn: ToolCall, id: str) -> tuple[bool, bool]:
    """Call a tool. Return whether the episode is over, and whether the tool's result ended it."""
    function = {"name": turn.name, "arguments": dumps(turn.arguments)}
    call = {"id": id, "type": "function", "function": function}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    try:
        result = await episode.call(turn.name, turn.arguments)
    except ToolError as error:
        episode.end("malformed", str(error))
        return True, False
    if not result.final:
        messages.append({"role": "tool", "tool_call_id": id, "content": result.content})
    return result.final, result.final


async def pay(environment: Environment, judge: Judge, plays: Sequence[PlayedRollout]) -> list[Paid]:
    """Judge rollouts of one scenario together, and compute their rewards as the learn loop does."""
    candidates = [Candidate(str(index), played.outcome, played.messages) for index, played in enumerate(plays)]
    judgement = await checked(judge, plays[0].scenario, candidates)
    paid = []
    for played, score in zip(plays, judgement.scores, strict=True):
        if score.value is None:
            paid.append(Paid(played, {}, None, success=False, unscored=score.explanation))
            continue
        parts = environment.reward(played.outcome, score.value)
        paid.append(Paid(played, parts, fsum(parts.values()), environment.success(played.outcome, score.value)))
    return paid
