"""What a run may use: each call reserves its worst case beforehand and records its actual usage afterwards.

A rollout's worst case is `max_turns` replies of `max_completion_tokens`, and as many prompts of the highest mean that a
rollout had so far; before any is known, a prompt is taken to have as many tokens as the opening has bytes. So much is
reserved for it, and more where its conversation grows beyond that: before each request it asks for room for what is
known of the prompt in tokens, what came since in bytes, and `max_completion_tokens`. Judging another group is taken to
cost what the most expensive group did; the first one is judged alone.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from environment.base import Environment, Json, ReportedEpisode, Scenario
from judges.base import JudgeCall, Judgement
from training.journal import EntryName
from training.phases import Phase
from training.recorded_calls import usages_of
from training.types import Rollout, RunConfig


class BudgetReached(Exception):
    """The next call does not fit the run's budget, and no running call can make room. The message says what does not
    fit."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, and the price in US dollars of what has a known price; None: nothing of it has."""

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
    """What is reserved for one call, which may be a conversation of several requests."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        """Call it before a request that uses at most `most()`. Reserves more where that is not covered; waits while
        running calls may leave enough. Raises BudgetReached."""

    def spend(self, used: Usage) -> None:
        """Record what a request used."""


class Unreserved:
    """Reserves nothing, records nothing."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        return None

    def spend(self, used: Usage) -> None:
        return None


class IterationBudget(Protocol):
    """What the calls of one iteration are charged to. All calls come from the run's own event loop."""

    def reserve(self, phase: Phase, most: Callable[[], Usage | None]) -> AbstractAsyncContextManager[Reservation]:
        """Around a call that uses at most `most()`; record on the reservation what it used.

        Waits while running calls may leave enough. None is a call whose usage cannot be foreseen: it waits for all
        others. Raises BudgetReached.
        """


class RunBudget(Protocol):
    """What one run may use."""

    prompt_per_turn: float | None
    """The highest mean of a rollout before this process took the run; None: there was none."""
    judging: Usage | None
    """The most that a group's verdicts used before; None: unknown."""

    @property
    def limited(self) -> bool:
        """Whether the run can reach a limit."""

    def for_iteration(self, iteration: int, kept: Mapping[Phase, Usage]) -> IterationBudget:
        """The budget of that iteration; `kept` is the usage of what its journal has, which is not done again."""


class Unlimited:
    """No limit."""

    prompt_per_turn: float | None = None
    judging: Usage | None = None
    limited = False

    def for_iteration(self, iteration: int, kept: Mapping[Phase, Usage]) -> "Unlimited":
        return self

    @asynccontextmanager
    async def reserve(self, phase: Phase, most: Callable[[], Usage | None]) -> AsyncIterator[Reservation]:
        yield Unreserved()


class Estimates:
    """What the next call of a run may use, from what the calls before it used."""

    def __init__(self, config: RunConfig, environment: Environment, budget: RunBudget) -> None:
        self._environment = environment
        self._turns = config.max_turns or environment.default_max_turns
        self._reply_tokens = config.max_completion_tokens
        self._prompt_per_turn = budget.prompt_per_turn
        self._opening: int | None = None
        self.judging = budget.judging

    def rollout(self, scenario: Scenario) -> Usage | None:
        """The worst case of a rollout; None: what an agent elsewhere shows its model is not known before the first."""
        prompt = self._prompt_per_turn
        if prompt is None:
            if isinstance(self._environment.episode(scenario), ReportedEpisode):
                return None
            if self._opening is None:
                self._opening = _opening_bytes(self._environment, scenario)
            prompt = self._opening
        return Usage(math.ceil(prompt * self._turns), self._turns * self._reply_tokens)

    def saw_rollout(self, rollout: Rollout) -> None:
        """Take in a finished rollout."""
        if turns := rollout.trajectory.metrics.get("turns", 0):
            mean = float(rollout.trajectory.metrics.get("prompt_tokens", 0)) / float(turns)
            self._prompt_per_turn = max(mean, self._prompt_per_turn or 0.0)

    def saw_judgement(self, judgement: Judgement) -> None:
        """Take in a judged group. Cached verdicts say nothing about the price of others."""
        if judgement.calls and all(call.cached for call in judgement.calls):
            return
        used, most = usage_of_calls(judgement.calls), self.judging or Usage()
        self.judging = Usage(
            max(used.prompt_tokens, most.prompt_tokens),
            max(used.completion_tokens, most.completion_tokens),
            max(used.usd or 0.0, most.usd or 0.0),
        )


def usage_of_rollouts(rollouts: Iterable[Rollout]) -> Usage:
    """The tokens of all of them."""
    return _tokens(rollout.trajectory.metrics for rollout in rollouts)


def usage_of_calls(calls: Iterable[JudgeCall]) -> Usage:
    """The tokens and the price of judge calls."""
    return sum((Usage(call.prompt_tokens, call.completion_tokens, call.cost_usd) for call in calls), Usage())


def usage_of_entries(kept: Mapping[str, str]) -> dict[Phase, Usage]:
    """What the entries of a journal used, by phase."""
    used: dict[Phase, Usage] = {}
    for name, text in kept.items():
        entry = EntryName.parse(name)
        if entry is None or _is_part(entry, kept):
            continue
        value = json.loads(text)
        each = _USED[entry.kind](value)
        used[entry.phase] = used.get(entry.phase, Usage()) + each
    return used


def _is_part(entry: EntryName, kept: Mapping[str, str]) -> bool:
    """Whether another entry has it too: a rollout has its calls, the verdicts on all groups repeat those on each."""
    if entry.kind == "calls":
        return str(entry.rollout) in kept
    return entry.kind == "judge" and entry.number is not None and str(EntryName("judge", entry.purpose)) in kept


def _of_rollout(value: Mapping[str, Mapping[str, float | int | bool]]) -> Usage:
    return _tokens([value["metrics"]])


def _of_calls(value: Sequence[Json]) -> Usage:
    return _tokens(usages_of(value))


def _of_judgements(value: list[dict[str, list[dict[str, object]]]]) -> Usage:
    return usage_of_calls(JudgeCall(**call) for judgement in value for call in judgement["calls"])  # type: ignore[arg-type]


def _tokens(metrics: Iterable[Mapping[str, float | int | bool]]) -> Usage:
    all_of_them = list(metrics)
    return Usage(
        sum(int(each.get("prompt_tokens", 0)) for each in all_of_them),
        sum(int(each.get("completion_tokens", 0)) for each in all_of_them),
    )


def _opening_bytes(environment: Environment, scenario: Scenario) -> int:
    episode = environment.episode(scenario)
    opening = [episode.messages(), [tool.openai() for tool in episode.tools]]
    return len(json.dumps(opening, ensure_ascii=False).encode())


_USED: Mapping[str, Callable[[Json], Usage]] = {
    "rollout": _of_rollout,
    "calls": _of_calls,
    "judge": _of_judgements,
}
"""What the entries of a kind used."""
