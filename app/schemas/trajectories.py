"""Bodies of the responses about trajectories."""

from datetime import datetime
from typing import Literal

from app.schemas.base import Json, ResponseModel

Split = Literal["train", "validation", "test"]
Mode = Literal["sampled", "greedy"]
Kind = Literal["train", "evaluation", "showcase", "ask"]


class TrajectoryBrief(ResponseModel):
    """A trajectory, as listed: without messages, tools and explanations."""

    id: str
    run_id: str | None
    kind: Kind
    iteration: int | None
    split: Split
    mode: Mode
    model: str
    step: int | None
    scenario_id: str
    scenario: dict[str, Json]
    outcome: dict[str, Json]
    """What the rollout produced, such as an answer or an email."""
    score: float | None
    """The judge's score in [0, 1]; null if it gave none."""
    reward: float | None
    """The number that training uses."""
    advantage: float | None
    """The reward compared with the group's mean."""
    success: bool | None
    error: str | None
    turns: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    started_at: datetime


class TrajectoryOut(TrajectoryBrief):
    """A trajectory with its messages, tools and the details of its score and reward."""

    messages: list[Json]
    tools: list[Json]
    score_explanation: str | None
    score_parts: dict[str, float]
    """The judges' scores that the score is made of."""
    reward_parts: dict[str, float]
    """The terms that add up to the reward."""
