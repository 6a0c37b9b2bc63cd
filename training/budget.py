"""The budget of a run: each call reserves its worst case beforehand and records its actual usage afterwards.

A rollout reserves `max_turns` replies of `max_completion_tokens`, and as many prompts of the highest mean length that a
rollout has had so far. Before any is known, a prompt counts as many tokens as the opening has bytes. If a conversation
outgrows this, it reserves more: each request needs room for the part of the prompt with known tokens, the bytes of the
rest, and `max_completion_tokens`. Judging a group reserves the usage of the most expensive group so far; the first
group is judged alone.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from learnloop_service.environment.base import Environment, Json, ReportedEpisode, Scenario
from learnloop_service.judges.base import JudgeCall, Judgement
from learnloop_service.training.journal import EntryName
from learnloop_service.training.phases import Phase
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.recorded_calls import usages_of
from learnloop_service.training.types import Rollout, RunConfig


class BudgetReached(Exception):
    """The next call does not fit the run's budget, and waiting for running calls would not help. The message says what
    does not fit."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, and their price in US dollars as far as it is known; None if no price is known."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        priced = [usd for usd in (self.usd, other.usd) if usd is not None]
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            math.fsum(priced) if priced else None,
        )


class Reservation(Protocol):
    """The reservation of one call, which can be a conversation of several requests."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        """Ensure room for a request that uses at most `most()`, reserving more if needed. Waits while running calls
        could still free enough. Raises BudgetReached."""

    def spend(self, used: Usage) -> None:
        """Record the usage of a request."""


class Unreserved:
    """Reserves nothing, records nothing."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        return None

    def spend(self, used: Usage) -> None:
        return None


class IterationBudget(Protocol):
    """Charges calls to one iteration. All calls come from the run's own event loop."""

    def reserve(self, phase: Phase, most: Callable[[], Usage | None]) -> AbstractAsyncContextManager[Reservation]:
        """Reserve room for a call that uses at most `most()`, while the block runs; record its usage on the
        reservation.

        Waits while running calls could still free enough. `most()` is None if the usage cannot be predicted; such a
        call waits for all others. Raises BudgetReached.
        """


class RunBudget(Protocol):
    """The budget of one run."""

    prompt_per_turn: float | None
    """Highest mean prompt length of a rollout, in tokens per turn, before this process took over the run; None if there
    was none."""
    judging: Usage | None
    """Highest usage for the verdicts on a group so far; None if unknown."""

    @property
    def limited(self) -> bool:
        """Whether the run has any limit."""

    def for_iteration(self, iteration: int, journaled: Mapping[Phase, Usage]) -> IterationBudget:
        """Return the budget of an iteration. `journaled` is the usage of the entries in its journal, whose work is not
        repeated."""


class Unlimited:
    """No limit."""

    prompt_per_turn: float | None = None
    judging: Usage | None = None
    limited = False

    def for_iteration(self, iteration: int, journaled: Mapping[Phase, Usage]) -> "Unlimited":
        return self

    @asynccontextmanager
    async def reserve(self, phase: Phase, most: Callable[[], Usage | None]) -> AsyncIterator[Reservation]:
        yield Unreserved()


class Estimates:
    """Estimates the usage of a run's next call from its earlier calls."""

    def __init__(self, config: RunConfig, environment: Environment, budget: RunBudget, *prompts: Prompt | None) -> None:
        self._environment = environment
        self._prompt_bytes = max((prompt.size for prompt in prompts if prompt is not None), default=0)
        self._turns = config.max_turns or environment.default_max_turns
        self._reply_tokens = config.max_completion_tokens
        self._prompt_per_turn = budget.prompt_per_turn
        self._opening: int | None = None
        self.judging = budget.judging

    def rollout(self, scenario: Scenario) -> Usage | None:
        """Return the worst case of a rollout. None if it cannot be predicted, because an agent with its own tools makes
        the prompts and no rollout has finished yet."""
        prompt = self._prompt_per_turn
        if prompt is None:
            if isinstance(self._environment.episode(scenario), ReportedEpisode):
                return None
            if self._opening is None:
                self._opening = _opening_bytes(self._environment, scenario) + self._prompt_bytes
            prompt = self._opening
        return Usage(math.ceil(prompt * self._turns), self._turns * self._reply_tokens)

    def saw_rollout(self, rollout: Rollout) -> None:
        """Update the estimates with a finished rollout."""
        if turns := rollout.trajectory.metrics.get("turns", 0):
            mean = float(rollout.trajectory.metrics.get("prompt_tokens", 0)) / float(turns)
            self._prompt_per_turn = max(mean, self._prompt_per_turn or 0.0)

    def saw_judgement(self, judgement: Judgement) -> None:
        """Update the estimates with a judged group. Cached verdicts are ignored, because they do not show the cost of
        new ones."""
        if judgement.calls and all(call.cached for call in judgement.calls):
            return
        used, most = usage_of_calls(judgement.calls), self.judging or Usage()
        self.judging = Usage(
            max(used.prompt_tokens, most.prompt_tokens),
            max(used.completion_tokens, most.completion_tokens),
            max(used.usd or 0.0, most.usd or 0.0),
        )


def usage_of_rollouts(rollouts: Iterable[Rollout]) -> Usage:
    """Return the tokens of all rollouts."""
    return _tokens(rollout.trajectory.metrics for rollout in rollouts)


def usage_of_calls(calls: Iterable[JudgeCall]) -> Usage:
    """Return the tokens and the price of judge calls."""
    return sum((Usage(call.prompt_tokens, call.completion_tokens, call.cost_usd) for call in calls), Usage())


def usage_of_entries(entries: Mapping[str, str]) -> dict[Phase, Usage]:
    """Return the usage in a journal's entries, by phase."""
    used: dict[Phase, Usage] = {}
    for name, text in entries.items():
        entry = EntryName.parse(name)
        if entry is None or _is_part(entry, entries):
            continue
        value = json.loads(text)
        of_entry = _USAGE_BY_KIND[entry.kind](value)
        used[entry.phase] = used.get(entry.phase, Usage()) + of_entry
    return used


def _is_part(entry: EntryName, entries: Mapping[str, str]) -> bool:
    """Return whether another entry includes this one's usage: a rollout includes its calls, and the verdicts on all
    groups include those on each."""
    if entry.kind == "calls":
        return str(entry.rollout) in entries
    return entry.kind == "judge" and entry.number is not None and str(EntryName("judge", entry.purpose)) in entries


def _tokens(metrics: Iterable[Mapping[str, float | int | bool]]) -> Usage:
    all_of_them = list(metrics)
    return Usage(
        sum(int(of_rollout.get("prompt_tokens", 0)) for of_rollout in all_of_them),
        sum(int(of_rollout.get("completion_tokens", 0)) for of_rollout in all_of_them),
    )


def _opening_bytes(environment: Environment, scenario: Scenario) -> int:
    episode = environment.episode(scenario)
    opening = [episode.messages(), [tool.openai() for tool in episode.tools]]
    return len(json.dumps(opening, ensure_ascii=False).encode())


_USAGE_BY_KIND: Mapping[str, Callable[[Json], Usage]] = {
    "rollout": lambda value: _tokens([value["metrics"]]),
    "calls": lambda value: _tokens(usages_of(value)),
    "judge": lambda value: usage_of_calls(JudgeCall(**call) for judgement in value for call in judgement["calls"]),
}
"""Functions that return the usage in an entry, by the entry's kind."""
