"""The report of a what-if: what continuations of a recorded rollout came to."""

from typing import Literal

from learnloop_service.app.schemas.base import ResponseModel
from learnloop_service.app.schemas.intervals import IntervalOut


class NextAction(ResponseModel):
    """What continuations did first, and how they ended."""

    action: str
    """The tools that were called first with their arguments, or the beginning of the text that was said."""
    count: int
    """Number of continuations that began so."""
    successes: int
    """How many of them succeeded."""
    is_original: bool
    """Whether the rollout itself went on so."""


class Continued(ResponseModel):
    """The continuations by one model from one turn on."""

    turn: int
    """The first turn that was sampled, from 1."""
    label: str
    """The model's name in this what-if."""
    count: int
    """Number of continuations that were judged."""
    success: IntervalOut | None
    """Share of successes with its 95% interval; null if none was judged."""
    reward: float | None
    """Mean reward; null without a reward."""
    turns: float | None
    """Mean number of turns in all, replayed ones included; null without a continuation."""
    next: list[NextAction]
    """Continuations by what they did first, the most frequent first."""


class OriginalRollout(ResponseModel):
    """The recorded rollout."""

    success: bool | None
    """Whether it succeeded; null if that is not known."""
    reward: float | None
    """Its reward."""
    turns: int
    """Its number of turns."""
    next: str | None
    """What it did at the turn; null if several turns are continued."""


class WhatIfReport(ResponseModel):
    """What continuations of a recorded rollout came to."""

    trajectory_id: str
    """The recorded rollout."""
    prefix: Literal["exact", "rendered"]
    """Whether models continue the recorded tokens, or tokens made from the recorded text: `rendered`."""
    edited: bool
    """Whether the conversation was changed before the turn. Edited tool results change what the model reads, and not
    the world."""
    original: OriginalRollout
    """How the recorded rollout went on."""
    continuations: list[Continued]
    """The figures by turn and model."""
