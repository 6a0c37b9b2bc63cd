"""What an environment is: scenarios to try, tools to try them with, and a reward made of named parts.

An environment knows nothing of models, backends, HTTP or judges' internals. A rollout opens an
`Episode`, shows its messages and tools to the policy, executes the tool calls through it, and at
the end reads its `outcome`: the facts that judges score and `Environment.reward` pays for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Json = Any
"""A value that `json.dumps` writes: None, bool, int, float, str, or lists and string-keyed dicts of these."""

Outcome = Mapping[str, Json]
"""Facts about one finished episode; keys are the environment's own and documented there."""

REPORTED_REWARD = "reported_reward"
"""The fact of an outcome, a number, that is its reward: whoever acted reported it, or whoever ran the gym. Such a
rollout is not shown to a judge."""

Split = Literal["train", "validation", "test"]
"""`train` feeds GRPO, `validation` picks the best checkpoint, `test` is read once, for the report."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One task for the agent. `task` is what it is given; `reference` is seen by judge and reward only."""

    id: str
    split: Split
    task: Mapping[str, Json]
    reference: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the policy may call. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Json]

    def openai(self) -> dict[str, Json]:
        """The tool in the form of OpenAI's chat completions API."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool call, or a reply without one, gave: the text that is read next, and whether the episode is over."""

    content: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool and what it is called with."""

    name: str
    arguments: Mapping[str, Json]


class ToolError(Exception):
    """The policy named an unknown tool or gave arguments outside its schema."""


class UnknownScenario(Exception):
    """No scenario of that id, or none that fits the request."""


class EpisodeFailed(Exception):
    """Something that the episode needs, such as a server, failed. The rollout then failed too: it has no reward."""


class Episode(Protocol):
    """One attempt at a scenario; owns whatever its tool calls change."""

    scenario: Scenario
    tools: Sequence[Tool]
    max_turns: int

    def messages(self) -> list[dict[str, Json]]:
        """The opening messages (system, user) in OpenAI's form."""

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Execute one tool call. Raises ToolError for a bad name or bad arguments, which ends the rollout as malformed,
        or EpisodeFailed."""

    def end(self, reason: Literal["out_of_turns", "malformed"], detail: str) -> None:
        """Tell the episode that it ended without a final tool call."""

    def outcome(self) -> Outcome:
        """The facts of the episode so far."""


@runtime_checkable
class TextEpisode(Protocol):
    """An episode in which a reply without a tool call is valid. In any other it ends the rollout as malformed."""

    def reply(self, text: str) -> ToolResult:
        """Take such a reply: as the answer (`final`), or as a turn to which the result's content is the user's."""


@runtime_checkable
class ReportedEpisode(Protocol):
    """An episode of an agent that has tools of its own: it is not over before the agent reports what came of it."""

    def report(self, text: str) -> None:
        """Take the agent's report: an outcome as JSON, or else its output. Raises ValueError for a bad outcome."""


@runtime_checkable
class OpenedEpisode(Protocol):
    """An episode that holds something, such as a connection to a server. What its `tools` and `messages` are is final
    once it is open."""

    async def open(self) -> None:
        """Get ready. Waiting for a turn may take any time and does not count as the rollout's; what is done then must
        have a time-out of its own. Raises EpisodeFailed."""

    async def close(self) -> None:
        """Let go of everything, whatever became of the rollout."""


class Environment(Protocol):
    """A kind of job. Instances are safe for many concurrent episodes; episodes share no state."""

    name: str
    default_max_turns: int
    default_judge: str
    """The judge of a run that names none; needs no key."""
    rubric: str
    """What makes one rollout better than another, for a judge that is a language model."""

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        """Numbers `start` to `start + count` of a split's scenarios, the same for the same seed.

        Splits never overlap. No number repeats another's scenario until the environment has no more. Raises ValueError,
        with a message for the user, where the config leaves none.
        """

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """A scenario without a reference, from a user's own task. Raises ValueError if it is unfit."""

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Episode:
        """Open an episode of the scenario."""

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Named parts whose sum is the reward; `score` in [0, 1] is the judge's verdict."""

    def success(self, outcome: Outcome, score: float) -> bool:
        """Whether the episode did the whole job: what success rates count."""

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        """What `/ask` returns of an episode: at least `answer`, `source_ids` and `success`; and `note`, if there is
        something to know about it, such as why there is no answer."""

    def close(self) -> None:
        """Close files and connections."""


@dataclass(frozen=True, slots=True)
class Rewarded:
    """What a rollout achieved: its scenario, its outcome, and the reward that training saw."""

    scenario: Scenario
    outcome: Outcome
    reward: float


@runtime_checkable
class Synthetic(Protocol):
    """An environment that says whether its scenarios are invented ones, as the shipped tiny model was trained on."""

    synthetic: bool


@runtime_checkable
class Solvable(Protocol):
    """An environment that can solve its own scenarios, which `learnloop check environment` plays as the oracle."""

    def solution(self, scenario: Scenario) -> Sequence[ToolCall | str]:
        """The turns of an ideal rollout, from the scenario's reference: tool calls, or replies in text."""


@runtime_checkable
class Reflective(Protocol):
    """An environment that learns with the policy. An instance belongs to one run, and its state to that run alone.

    The state is a function of its initial value and of what it reflected on, in that order: the stored trajectories
    of a run give its states again.
    """

    def showcase(self, seed: int) -> Scenario:
        """The scenario that is rolled out once after every iteration, so that people see the agent change."""

    def reflect(self, rewarded: Sequence[Rewarded]) -> None:
        """Take in an iteration's rollouts; episodes opened from now on see the change."""

    def state(self) -> dict[str, Json]:
        """What was learned so far, as JSON."""

    def restore(self, state: Mapping[str, Json]) -> None:
        """Restore what `state` gave. Raises ValueError for anything else."""
