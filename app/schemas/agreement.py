"""Bodies of the request that compares two judges, and of its response."""

from typing import Literal

from pydantic import ConfigDict, Field

from learnloop_service.app.schemas.base import Name, RequestBody, RequestPart, ResponseModel
from learnloop_service.environment.json_type import Json

MAX_TRAJECTORIES = 500


class ComparedJudge(RequestPart):
    """A judge that scores the rollouts."""

    name: Name
    """Name of the judge, one of `GET /judges`."""
    config: dict[str, Json] = Field(default_factory=dict)
    """Settings of this judge. Empty: its defaults."""


class AgreementRequest(RequestBody):
    """Which judges to compare, and on which rollouts of the run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "judges": [
                        {"name": "reference"},
                        {"name": "correctness", "config": {"model": "openai/gpt-4.1-mini"}},
                    ]
                }
            ]
        }
    )

    judges: list[ComparedJudge] = Field(min_length=1, max_length=2)
    """The two judges. A single one is compared with the scores that the rollouts have."""
    kind: Literal["train", "evaluation"] = "evaluation"
    """Which rollouts: those that were trained on, or those of the held-out evaluations."""
    trajectories: int = Field(default=100, ge=2, le=MAX_TRAJECTORIES)
    """Maximum number of rollouts, the newest ones; those of a scenario and iteration stay together."""


class AgreeingJudge(ResponseModel):
    """One of the two judges, and what its verdicts cost."""

    name: str
    """Name of the judge; `stored` for the scores that the rollouts have."""
    scored: int
    """Number of rollouts that it scored."""
    mean: float | None
    """Mean of its scores; null if it gave none."""
    requests: int
    """Requests to a judge model."""
    cached: int
    """Verdicts of a judge model that came from the cache."""
    prompt_tokens: int
    """Prompt tokens of these requests."""
    completion_tokens: int
    """Completion tokens of these requests."""
    cost_usd: float | None
    """What they cost in US dollars; null if a price is unknown."""


class Disagreement(ResponseModel):
    """A rollout that the judges score differently."""

    trajectory_id: str
    """Id of the trajectory."""
    scenario_id: str
    """Id of the scenario."""
    scores: list[float | None] = Field(min_length=2, max_length=2)
    """Both scores, in the order of the judges; null where one has none."""
    explanations: list[str] = Field(min_length=2, max_length=2)
    """Both explanations."""


class Agreement(ResponseModel):
    """How far two judges agree on the rollouts of a run."""

    run_id: str
    """Id of the run."""
    judges: list[AgreeingJudge] = Field(min_length=2, max_length=2)
    """The two judges."""
    trajectories: int
    """Number of rollouts that both were shown."""
    both_scored: int
    """Number of rollouts that both scored; the figures below are about them."""
    same_decisions: float | None
    """Share on which both decide alike, where a score from 0.5 is a yes; null if both scored none."""
    kappa: float | None
    """Cohen's kappa of these decisions, from -1 to 1; null where both always decide the same way."""
    rank_correlation: float | None
    """Spearman's rank correlation of the scores, from -1 to 1; null where a judge gives one score only."""
    disagreement_count: int
    """Number of rollouts that they score differently, or that only one of them scores."""
    disagreements: list[Disagreement] = Field(max_length=100)
    """The first 100 of them, the largest differences first."""
