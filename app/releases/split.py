"""How a live release divides the requests of its name, and what one request meets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from learnloop_service.app.db.tables import Promotion, Release
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.releases.assignment import assignment
from learnloop_service.training.protocol.model_name import ModelName


@dataclass(frozen=True, slots=True)
class Requester:
    """Who a request is answered for."""

    user_hash: str | None
    """Hash of the user's key; None if the request names no user."""
    session_id: str | None = None
    """The session that is being opened, if the request opens one."""


@dataclass(frozen=True, slots=True)
class Split:
    """The part of a live release that decides and records who meets which checkpoint."""

    release_id: str
    salt: bytes = field(repr=False)
    unit: str
    """What is assigned: `user` or `session`."""
    stage: int
    share: float
    ramp: Sequence[float]
    candidate: ModelName
    candidate_prompt: PromptReference | None
    p95_s: float | None
    """95th percentile of the seconds of an answer of the stable checkpoint; None if too few are known."""
    tokens: float | None
    """Mean number of tokens of an answer of the stable checkpoint; None if too few are known."""

    @classmethod
    def of(cls, release: Release) -> Self:
        """Return the split of a release."""
        return cls(
            release.id,
            release.salt,
            release.unit,
            release.stage,
            release.share,
            release.rules["ramp"],
            ModelName(release.project, release.model_name, release.step),
            release.prompt,
            release.baseline["p95_s"],
            release.baseline["tokens"],
        )

    def when_met(self, arm: Arm, probability: float) -> Self:
        """Return the split in the stage in which a unit met `arm` with that probability."""
        share = probability if arm == Arm.CANDIDATE else 1.0 - probability
        stage = min(range(len(self.ramp)), key=lambda index: abs(self.ramp[index] - share))
        return replace(self, stage=stage, share=self.ramp[stage])

    def exposure(self, requester: Requester) -> "Exposure":
        """Return what the requester meets."""
        unit = requester.user_hash if self.unit == "user" else requester.session_id
        if unit is None:
            return Exposure(self, None, Arm.STABLE, is_enrolled=False)
        met = assignment(self.salt, unit, self.share)
        return Exposure(self, unit, met.arm, is_enrolled=met.is_enrolled)


@dataclass(frozen=True, slots=True)
class Exposure:
    """What one request meets of a release. It is recorded before the answer leaves."""

    split: Split
    unit: str | None
    """None if the request cannot be assigned, because it names no user or opens no session."""
    arm: Arm
    is_enrolled: bool

    @property
    def probability(self) -> float:
        """Probability, over the salt, that this unit met this arm."""
        if self.unit is None:
            return 1.0
        return self.split.share if self.arm == Arm.CANDIDATE else 1.0 - self.split.share

    def columns(self) -> dict[str, object]:
        """Return the values for the columns of a trajectory or a session."""
        return {"release_id": self.split.release_id, "arm": str(self.arm), "probability": self.probability}

    def model(self, stable: Promotion) -> ModelName:
        """Return the checkpoint that answers."""
        if self.arm == Arm.CANDIDATE:
            return self.split.candidate
        return ModelName(stable.project, stable.model_name, stable.step)

    def prompt(self, stable: Promotion) -> PromptReference | None:
        """Return the prompt that it answers with."""
        return self.split.candidate_prompt if self.arm == Arm.CANDIDATE else stable.prompt
