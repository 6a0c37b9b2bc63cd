"""What a run may spend: asked before each call, told after it. The default asks nobody.

A rollout's worst case is `max_turns` replies of `max_completion_tokens`, and as many prompts of the highest mean that a
rollout had so far; before any is known, a prompt is taken to have as many tokens as the opening has bytes. So much is
held back for it, and more where its conversation grows beyond that: before each request it asks for room for what is
known of the prompt in tokens, what came since in bytes, and `max_completion_tokens`. Judging another group is taken to
cost what the dearest group did; the first one is judged alone.
"""

import json
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from environment.base import Environment, Scenario
from judges.base import JudgeCall, Judgement
from training.types import Rollout, RunConfig

Phase = Literal["rollout", "judge", "train", "reflect", "evaluate"]
_PLACES: Mapping[str, Mapping[str, Phase]] = {
    "rollout": {"train": "rollout", "showcase": "reflect"},
    "judge": {"train": "judge", "showcase": "reflect"},
}


class BudgetReached(Exception):
    """The next call does not fit what a run may spend, and none is under way. The message says what does not fit."""


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
    """What is held back for one call, which may be a conversation of several requests."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        """Before a request that takes at most `most()`. Where what is held back does not hold it, more is; waits while
        calls under way may leave enough. Raises BudgetReached."""

    def spend(self, used: Usage) -> None:
        """So much of it was used."""


class Unreserved:
    """Nobody counts."""

    async def room_for(self, most: Callable[[], Usage]) -> None:
        return None

    def spend(self, used: Usage) -> None:
        return None


class Allowance(Protocol):
    """What one run may spend. All calls come from the run's own event loop."""

    prompt_per_turn: float | None
    """The highest mean of a rollout so far; None: there was none."""
    judging: Usage | None
    """The most that a group's verdicts took so far; None: nobody knows."""

    def begin(self, iteration: int, kept: Mapping[Phase, Usage]) -> None:
        """From now on it is this iteration; `kept` is what the journal has of it, which is not done again."""

    def reserved(self, phase: Phase, most: Callable[[], Usage | None]) -> AbstractAsyncContextManager[Reservation]:
        """Around a call that takes at most `most()`; tell the reservation what it took.

        Waits while calls under way may leave enough. None is a call of which nobody knows what it takes: it waits for
        all others. Raises BudgetReached.
        """


class Unlimited:
    """Lets everybody spend."""

    prompt_per_turn: float | None = None
    judging: Usage | None = None

    def begin(self, iteration: int, kept: Mapping[Phase, Usage]) -> None:
        return None

    @asynccontextmanager
    async def reserved(self, phase: Phase, most: Callable[[], Usage | None]) -> AsyncIterator[Reservation]:
        yield Unreserved()


class Estimates:
    """What the next call of a run may take, from what those before it took."""

    def __init__(self, config: RunConfig, environment: Environment, allowance: Allowance) -> None:
        self._environment = environment
        self._turns = config.max_turns or environment.default_max_turns
        self._reply_tokens = config.max_completion_tokens
        self._prompt_per_turn = allowance.prompt_per_turn
        self._opening: int | None = None
        self.judging = allowance.judging

    def rollout(self, scenario: Scenario) -> Usage:
        """The worst case of a rollout."""
        prompt = self._prompt_per_turn
        if prompt is None:
            if self._opening is None:
                self._opening = _opening_bytes(self._environment, scenario)
            prompt = self._opening
        return Usage(math.ceil(prompt * self._turns), self._turns * self._reply_tokens)

    def saw_rollout(self, rollout: Rollout) -> None:
        """A rollout was made."""
        if turns := rollout.trajectory.metrics.get("turns", 0):
            mean = float(rollout.trajectory.metrics.get("prompt_tokens", 0)) / float(turns)
            self._prompt_per_turn = max(mean, self._prompt_per_turn or 0.0)

    def saw_judgement(self, judgement: Judgement) -> None:
        """A group was judged. Verdicts out of the cache tell nothing of the price of others."""
        if judgement.calls and all(call.cached for call in judgement.calls):
            return
        used, most = of_calls(judgement.calls), self.judging or Usage()
        self.judging = Usage(
            max(used.prompt_tokens, most.prompt_tokens),
            max(used.completion_tokens, most.completion_tokens),
            max(used.usd or 0.0, most.usd or 0.0),
        )


def of_rollouts(rollouts: Iterable[Rollout]) -> Usage:
    """The tokens of all of them."""
    used = [rollout.trajectory.metrics for rollout in rollouts]
    return _tokens(used)


def of_calls(calls: Iterable[JudgeCall]) -> Usage:
    """The tokens and the price of judge calls."""
    return sum((Usage(call.prompt_tokens, call.completion_tokens, call.cost_usd) for call in calls), Usage())


def of_kept(kept: Mapping[str, str]) -> dict[Phase, Usage]:
    """What the entries of a journal took, by phase (see training/journal.py for their names)."""
    used: dict[Phase, Usage] = {}
    for name, text in kept.items():
        kind, _, where = name.partition("/")
        place = where.partition("/")[0]
        if kind not in _PLACES or (kind == "judge" and where != place and f"judge/{place}" in kept):
            continue
        value = json.loads(text)
        each = _tokens([value["metrics"]]) if kind == "rollout" else _of_judgements(value)
        phase = phase_of(kind, place)
        used[phase] = used.get(phase, Usage()) + each
    return used


def phase_of(kind: str, where: str) -> Phase:
    """The phase whose time and money a rollout or a verdict there takes."""
    return _PLACES[kind].get(where, "evaluate")


def _of_judgements(value: list[dict[str, list[dict[str, object]]]]) -> Usage:
    return of_calls(JudgeCall(**call) for judgement in value for call in judgement["calls"])  # type: ignore[arg-type]


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
