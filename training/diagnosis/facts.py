"""The facts of an iteration that a diagnosis is made from: counts per group, and a few examples.

They are saved with the iteration and kept when its trajectories are pruned, so the same run always gets the same
diagnoses.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pydantic import TypeAdapter

from environment.json_type import Json

MAX_EXAMPLES = 5
"""Number of trajectory ids that are kept for each symptom."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Counts of one group's rollouts by symptom."""

    rollouts: int
    infrastructure: int = 0
    """Rollouts that failed because a server or the network failed, or because they took too long."""
    truncated: int = 0
    """Rollouts with a reply of the maximum length."""
    malformed: int = 0
    """Rollouts that ended with a malformed reply."""
    truncated_malformed: int = 0
    """Malformed rollouts whose replies were truncated."""


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
    """Log-probabilities of the same tokens from the sampler and the trainer, as means of absolute differences in nats.
    The tokens are those that the step moved most.

    `before` and `after` are the trainer's weights before and after the iteration's step.
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
    timeouts: int = 0
    """Rollouts that took too long; they count as infrastructure as well."""
    examples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Ids of trajectories by symptom."""
    errors: tuple[str, ...] = ()
    """Distinct messages of infrastructure failures, at most three."""
    forms: tuple[Form, ...] = ()
    """The commonest forms of malformed replies, at most three."""
    evaluated_malformed: float | None = None
    """Share of the sampled validation rollouts that ended malformed; None if the iteration has no evaluation."""
    readings: Mapping[str, Readings] = field(default_factory=dict)
    """Results of reading replies again, for `train` and `evaluation`; empty if the backend has its own parser."""
    probe: Probe | None = None

    def dump(self) -> dict[str, Json]:
        """Return the facts as JSON."""
        return asdict(self)

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Parse dumped facts."""
        facts: Self = _FACTS.validate_python(value)
        return facts


_FACTS: TypeAdapter[Any] = TypeAdapter(Facts)
