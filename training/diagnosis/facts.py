"""The facts of an iteration that a diagnosis is made from: counts per group, and a few examples.

They are saved with the iteration and kept when its trajectories are pruned, so the same run always gets the same
diagnoses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any, Self

from pydantic import TypeAdapter

from learnloop_service.environment.json_type import Json
from learnloop_service.training.group_facts import GroupFacts as GroupFacts
from learnloop_service.training.protocol.model_facts import MeasuredToken

MAX_EXAMPLES = 5
"""Number of trajectory ids that are kept for each symptom."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of malformed replies: how often it was written, and one reply of that form."""

    count: int
    text: str
    """The beginning of what the model wrote in one of these replies."""
    trajectory_id: str


@dataclass(frozen=True, slots=True)
class Readings:
    """Replies that were read again by the parser of this service, and those that it reads differently than recorded."""

    read: int
    different: int
    text: str = ""
    """The first reply that is read differently."""
    trajectory_id: str = ""
    tool_format: str = "hermes"
    """The format in which they were read."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Log-probabilities of the same tokens from the sampler and the trainer, as medians of absolute differences, in
    nats. The tokens are those that the step moved most.

    `before` and `after` are the trainer's weights before and after the iteration's step. Other weights move most of
    the tokens. Rounding in 16 bits moves a few of them, as far as a step does: a mean would show that, a median does
    not.
    """

    tokens: int
    moved: float
    """Between before and after."""
    noise: float
    """Between before and what the sampler recorded."""
    sampler_after: float
    """Between after and what the sampler computes now."""
    sampler_before: float
    """Between before and what the sampler computes now."""

    @classmethod
    def of(cls, compared: Sequence[tuple[MeasuredToken, float]]) -> Self:
        """Return the differences at one token or more, each with what the sampler computes for it now."""
        return cls(
            tokens=len(compared),
            moved=median(token.moved for token, _ in compared),
            noise=median(abs(token.recorded - token.before) for token, _ in compared),
            sampler_after=median(abs(now - token.after) for token, now in compared),
            sampler_before=median(abs(now - token.before) for token, now in compared),
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """A rollout whose tool calls were executed again, and the first difference, if there was one."""

    trajectory_id: str
    differs: bool = False
    turn: int = 0
    tool: str | None = None
    recorded: str | None = None
    """What the environment answered in the rollout."""
    found: str | None = None
    """What it answered now."""


@dataclass(frozen=True, slots=True)
class RewardFacts:
    """The rewards of an iteration's training rollouts."""

    mean: float
    deviation: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Mean of each part of the reward."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """An evaluation on the validation split, by scenario."""

    sampled: Mapping[str, float] = field(default_factory=dict)
    """Success rate of each scenario's sampled rollouts."""
    greedy: Mapping[str, float] = field(default_factory=dict)
    """The same of its greedy rollout: 0 or 1."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one iteration."""

    iteration: int
    step: int
    """The policy's step after the iteration."""
    sampled_step: int | None = None
    staleness: int | None = None
    kl_div: float | None = None
    """Divergence of the trained policy from the sampling one, in nats per token, as the trainer measured it."""
    weights_sha256: str | None = None
    """Hash of the weights at `step`; None if the backend does not report it."""
    base_model: str | None = None
    """The base model that the weights were first made from; None if the backend does not report it."""
    has_oracle: bool = False
    """Whether the environment can solve its own scenarios."""
    groups: tuple[GroupFacts, ...] = ()
    """The groups that the schedule drew. Figures are about these (training/inclusion.py)."""
    replacements: tuple[GroupFacts, ...] = ()
    """The groups that replace others, which taught nothing."""
    timeouts: int = 0
    """Rollouts that took too long; they count as infrastructure as well."""
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of trajectories by symptom."""
    max_turns: int | None = None
    """Limit of the rollouts' turns."""
    errors: tuple[str, ...] = ()
    """Distinct messages of infrastructure failures, at most three."""
    forms: tuple[Form, ...] = ()
    """The commonest forms of malformed replies, at most three."""
    agent_errors: tuple[str, ...] = ()
    """Distinct errors of agents with a loop of their own, at most three."""
    judge_errors: tuple[str, ...] = ()
    """Distinct reasons why the judge gave no score, at most three."""
    evaluated: GroupFacts | None = None
    """Counts of the sampled validation rollouts; None if the iteration has no evaluation."""
    held_out: HeldOut | None = None
    rewards: RewardFacts | None = None
    completion_tokens: float | None = None
    """Median number of tokens that were sampled in a rollout."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The step's metrics that detectors use."""
    no_signal: str | None = None
    """Why the iteration had no training signal (training/no_signal.py); None if it had one."""
    tasks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Hashes of the scenarios' tasks, by split and scenario id; of held-out splits only in the baseline,
    unless it can end early."""
    demonstrated: tuple[str, ...] = ()
    """Ids of training scenarios that the environment's oracle demonstrated, at most 2,000; only in the baseline."""
    replay: Replay | None = None
    readings: Mapping[str, Readings] = field(default_factory=dict)
    """Results of reading replies again, for `train` and `evaluation`; empty if the backend has its own parser."""
    probe: Probe | None = None

    def dump(self) -> dict[str, Json]:
        """Return the facts as JSON. The groups' counts are columns, and those that all groups have by default are left
        out: a run has these facts of each iteration, and they are read together."""
        dumped = asdict(self)
        del dumped["replacements"]
        dumped["groups"], replacements = _columns(self.groups), _columns(self.replacements)
        return dumped | {"replacements": replacements} if replacements else dumped

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Parse dumped facts. Earlier versions stored the groups as a list of objects."""
        groups = {name: _rows(value.get(name, ())) for name in ("groups", "replacements")}
        facts: Self = _FACTS.validate_python({**value, **groups})
        return facts


def _columns(groups: Sequence[GroupFacts]) -> dict[str, list[Json]]:
    columns = {count: [getattr(group, count.name) for group in groups] for count in fields(GroupFacts)}
    return {of.name: column for of, column in columns.items() if any(value != of.default for value in column)}


def _rows(groups: Any) -> Any:
    if not isinstance(groups, Mapping):
        return groups
    return [dict(zip(groups, row, strict=True)) for row in zip(*groups.values(), strict=True)]


_FACTS: TypeAdapter[Any] = TypeAdapter(Facts)
