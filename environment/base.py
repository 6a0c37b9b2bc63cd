"""What an environment is: scenarios to try, tools to try them with, and a reward made of named parts.

An environment knows nothing about models, backends, HTTP or the internals of judges. A rollout opens an `Episode`,
shows its messages and tools to the policy, executes the tool calls through it, and at the end reads its `outcome`: the
facts that judges score and `Environment.reward` rewards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from learnloop_service.environment.json_type import Json as Json

Outcome = Mapping[str, Json]
"""Facts about one finished episode. Each environment defines and documents its own keys."""

REPORTED_REWARD = "reported_reward"
"""Key of an outcome that holds a reward (a number) reported by the agent or by the gym's server. Such a rollout is not
shown to a judge."""

CUT_OFF = "cut_off"
"""Key of an outcome whose agent was lost after a reply that was cut off at its limit, or to a full context. Its reward
is 0, or the lowest one of its group if that is below 0."""

Split = Literal["train", "validation", "test"]
"""`train` feeds GRPO, `validation` selects the best checkpoint, and `test` is evaluated once, for the report."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One task for the agent. The agent is given `task`; only judge and reward see `reference`."""

    id: str
    split: Split
    task: Mapping[str, Json]
    reference: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the policy can call. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Json]

    def openai(self) -> dict[str, Json]:
        """The tool in the format of OpenAI's chat completions API."""
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
    """The result of a tool call, or of a reply without one: the text that the policy reads next, and whether the
    episode is over."""

    content: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool's name and the arguments of the call."""

    name: str
    arguments: Mapping[str, Json]


class ToolError(Exception):
    """The policy named an unknown tool or gave arguments outside its schema."""


class UnknownScenario(Exception):
    """No scenario has that id, or none fits the request."""


class EpisodeFailed(Exception):
    """Something that the episode needs, such as a server, failed. The rollout then has failed and gets no reward."""


Ending = Literal["out_of_turns", "full_context", "malformed"]
"""Why an episode ended without a result: its turns are used up, the conversation fills the model's context, or the
policy wrote no valid call."""


class Episode(Protocol):
    """One attempt at a scenario. It owns whatever its tool calls change."""

    scenario: Scenario
    tools: Sequence[Tool]
    max_turns: int

    def messages(self) -> list[dict[str, Json]]:
        """Return the opening messages (system, user) in OpenAI's format."""

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Execute one tool call. Raises ToolError for an unknown tool or invalid arguments, which ends the rollout as
        malformed, or EpisodeFailed."""

    def end(self, reason: Ending, detail: str) -> None:
        """Record that the episode ended without a final tool call."""

    def outcome(self) -> Outcome:
        """Return the facts of the episode so far."""


@runtime_checkable
class TextEpisode(Protocol):
    """An episode in which a reply without a tool call is valid. In all others such a reply ends the rollout as
    malformed."""

    def reply(self, text: str) -> ToolResult:
        """Handle such a reply: as the answer (`final`), or as a turn; then the result's content is the user's next
        message."""


@runtime_checkable
class ReportedEpisode(Protocol):
    """An episode of an agent with tools of its own. It is over only when the agent reports its outcome."""

    def report(self, text: str) -> None:
        """Handle the agent's report: an outcome as JSON, or otherwise its output. Raises ValueError for an invalid
        outcome."""


@runtime_checkable
class EpisodeWithFields(Protocol):
    """An episode that offers texts to the placeholders of prompts (training/prompt.py)."""

    def fields(self) -> Mapping[str, str]:
        """Return the texts by the names of their placeholders, which consist of lower-case letters and underscores.
        The policy reads them, so they say nothing that it should find out."""


@runtime_checkable
class OpenedEpisode(Protocol):
    """An episode that holds a resource, such as a connection to a server. Its `tools` and `messages` are final once it
    is open."""

    async def open(self) -> None:
        """Acquire the resource. Waiting for a free place can take any time and does not count as the rollout's;
        everything after that needs its own time-out. Raises EpisodeFailed."""

    async def close(self) -> None:
        """Release everything, whatever the result of the rollout."""


class Environment(Protocol):
    """A kind of job for an agent. Instances can run many concurrent episodes; episodes share no state."""

    name: str
    default_max_turns: int
    default_judge: str
    """Default judge of a run; it needs no key."""
    rubric: str
    """What makes one rollout better than another, written for a judge that is a language model."""

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        """Return numbers `start` to `start + count` of a split's scenarios, always the same for a given seed.

        Splits never overlap. No scenario repeats before the environment has used all of them. Raises ValueError, with a
        message for the user, if the config leaves none.
        """

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Return a scenario without a reference for a user's own task. Raises ValueError for an unsuitable task."""

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> Episode:
        """Create an episode of the scenario."""

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Return the named parts whose sum is the reward; `score` in [0, 1] is the judge's verdict."""

    def success(self, outcome: Outcome, score: float) -> bool:
        """Whether the episode did the whole job; success rates count these."""

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        """Return what `/ask` returns about an episode: at least `answer`, `source_ids` and `success`; and `note` if
        there is something to explain, such as why there is no answer."""

    def close(self) -> None:
        """Close files and connections."""


@dataclass(frozen=True, slots=True)
class Rewarded:
    """What a rollout achieved: its scenario, its outcome, and the reward used in training."""

    scenario: Scenario
    outcome: Outcome
    reward: float


@runtime_checkable
class Synthetic(Protocol):
    """An environment that says whether its scenarios are invented ones like those the shipped tiny model was trained
    on."""

    synthetic: bool


@runtime_checkable
class Solvable(Protocol):
    """An environment that can solve its own scenarios. `learnloop check environment` plays these solutions as the
    oracle."""

    def solution(self, scenario: Scenario) -> Sequence[ToolCall | str]:
        """Return the turns of an ideal rollout, derived from the scenario's reference: tool calls, or replies in
        text."""


@runtime_checkable
class Explained(Protocol):
    """An environment that says why an outcome is not a success."""

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        """Return a clause such as "no source cited; expected pebro" for an outcome that `success` rejects, or None if
        there is nothing to say. `score` is None if nothing scored the outcome, as in `/ask` about a task without a
        known answer."""


@runtime_checkable
class Reflective(Protocol):
    """An environment that learns along with the policy. An instance and its state belong to one run.

    The state depends only on its initial value and the sequence of rollouts passed to `reflect`, so a run's stored
    trajectories reproduce its states.
    """

    def showcase(self, seed: int) -> Scenario:
        """Return the scenario that is rolled out once after every iteration to show how the agent changes."""

    def reflect(self, rewarded: Sequence[Rewarded]) -> None:
        """Learn from an iteration's rollouts; episodes opened afterwards see the change."""

    def state(self) -> dict[str, Json]:
        """Return what has been learned so far, as JSON."""

    def restore(self, state: Mapping[str, Json]) -> None:
        """Restore what `state` returned. Raises ValueError for anything else."""
