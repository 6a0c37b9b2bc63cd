"""Bodies of the request that scores a rollout's tokens by other checkpoints, and of its response."""

from typing import Annotated

from pydantic import ConfigDict, Field

from learnloop_service.app.schemas.base import RequestBody, ResponseModel


class LikelihoodRequest(RequestBody):
    """Which checkpoints score which turns of a rollout."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"checkpoints": [0, 14]}]})

    checkpoints: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(min_length=2, max_length=2)
    """Steps of two checkpoints of the rollout's run that are kept."""
    turn: int | None = Field(default=None, ge=1, le=1_000)
    """The turn to score, from 1. Default: all turns."""


class ScoredTurn(ResponseModel):
    """The tokens of one turn of the agent."""

    turn: int
    """The turn, from 1."""
    message: int
    """Place of the turn in `messages` of the trajectory, from 0."""
    texts: list[str]
    """The tokens as text, as in `GET /trajectories/{trajectory_id}/tokens`."""
    logprobs: list[list[float]] = Field(min_length=2, max_length=2)
    """The natural log-probabilities that each checkpoint gives the tokens after everything before."""


class Likelihood(ResponseModel):
    """How likely two checkpoints find the tokens of a rollout."""

    trajectory_id: str
    """Id of the trajectory."""
    checkpoints: list[int]
    """Steps of the two checkpoints."""
    turns: list[ScoredTurn]
    """The turns whose tokens were sampled, in order."""
