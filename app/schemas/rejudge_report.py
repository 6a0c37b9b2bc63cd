"""The report of a rejudging: what other scores would have changed in a run."""

from learnloop_service.app.schemas.base import ResponseModel


class BeforeAndNow(ResponseModel):
    """A figure by the run's own scores and by the new ones."""

    before: float | None
    """The value by the run's own scores; null if there is none."""
    now: float | None
    """The value by the new scores."""


class RewardChanges(ResponseModel):
    """What the new scores change in some rollouts of training."""

    rollouts: int
    """Number of rollouts."""
    flipped: float | None
    """Share of advantages whose sign differs; null if none can be compared."""
    gained: int
    """Groups without a training signal that have one now."""
    lost: int
    """Groups with a training signal that have none now."""
    correlation: float | None
    """Spearman's correlation of the rewards; null if it is not defined."""
    reward: BeforeAndNow
    """Mean reward."""
    success: BeforeAndNow
    """Share of successes."""


class IterationChanges(RewardChanges):
    """What the new scores change in the training rollouts of an iteration."""

    iteration: int
    """The iteration."""


class EvaluationChanges(ResponseModel):
    """What the new scores make of a held-out evaluation."""

    iteration: int
    """The iteration that it followed; 0 is the baseline."""
    split: str
    """Which held-out scenarios."""
    mode: str
    """`sampled` or `greedy`."""
    step: int
    """The checkpoint."""
    success: BeforeAndNow
    """Share of successes."""
    reward: BeforeAndNow
    """Mean reward."""


class JudgeNoise(ResponseModel):
    """How far the judge differs from itself on the same rollouts."""

    deviation: float
    """Standard deviation of the scores of one rollout."""
    icc: float | None
    """Intraclass correlation ICC(1), the share of the variance that is between rollouts; null if scores do not
    vary."""
    floor: float | None
    """Share of advantages whose sign differs between two repeats. Fewer changes than that are noise."""


class LargestChange(ResponseModel):
    """A rollout whose reward changes most."""

    trajectory_id: str
    """The rollout."""
    iteration: int
    """Its iteration."""
    reward: BeforeAndNow
    """Its reward."""
    advantage: BeforeAndNow
    """Its advantage."""
    explanations: list[str]
    """Why it had its score, and why it has the new one."""


class RejudgeReport(ResponseModel):
    """What other scores would have changed in a run. The run itself is as it was."""

    run_id: str
    """The run."""
    repeats: int
    """How often each rollout was judged."""
    rollouts: int | None = None
    """Number of rollouts that did not fail; null in reports of earlier versions, as are the next two."""
    scored: int | None = None
    """Number of those that the judge gave a score, in the first repeat."""
    conclusive: bool | None = None
    """Whether at least half of them have a score. Otherwise the report has no finding."""
    code: str
    """SHA-256 of the code of judges and environments."""
    all: RewardChanges | None
    """The training rollouts together; null if none was judged again."""
    iterations: list[IterationChanges]
    """The training rollouts by iteration."""
    evaluations: list[EvaluationChanges]
    """The held-out evaluations, if they were judged again."""
    best_step: BeforeAndNow | None
    """The checkpoint that the run chose, and the one that it would choose; null without validation rollouts."""
    first_changed: int | None
    """The first iteration in which an advantage differs in any bit; null if none does."""
    first_mattering: int | None
    """The first iteration in which an advantage differs by more than scaling the rewards makes of it. From here on,
    training would have gone another way."""
    noise: JudgeNoise | None
    """The judge's own noise; null without repeats."""
    largest: list[LargestChange]
    """The ten training rollouts whose reward changes most."""
    text: str
    """The same in a sentence or two."""
