"""Executes the tool calls of a finished rollout again, to see whether the environment repeats their results."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from learnloop_service.environment.base import Environment
from learnloop_service.environment.trace import tracing
from learnloop_service.training.diagnosis.count_group import choices_of
from learnloop_service.training.diagnosis.facts import Replay
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.rollout.fork import Fork, Message, ReplayDiffers
from learnloop_service.training.rollout.rollout import RolloutLimits, replay
from learnloop_service.training.types import IterationResult, Rollout, RunConfig

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice

_SHOWN = 200
"""Characters that are kept of a result."""


async def replayed(
    result: IterationResult, config: RunConfig, environment: Environment, prompt: Prompt | None
) -> Replay | None:
    """Replay one of the iteration's rollouts up to its last turn. Return None if none has two turns.

    Raises TimeoutError, and the environment's errors.
    """
    rollout = next(_with_turns(result), None)
    if rollout is None:
        return None
    conversation = cast("list[Message | Choice]", rollout.trajectory.messages_and_choices)
    fork = Fork.of(conversation, len(list(choices_of(rollout))))
    limits = RolloutLimits(config.max_turns or environment.default_max_turns, timeout_s=config.rollout_timeout_s)
    try:
        with tracing(None):  # nothing here is a call of a model, or an agent's
            await replay(environment, rollout.scenario, fork, limits, prompt=prompt)
    except ReplayDiffers as difference:
        return Replay(
            rollout.id,
            True,
            difference.turn,
            difference.tool,
            _excerpt(difference.recorded),
            _excerpt(difference.found),
        )
    return Replay(rollout.id)


def _with_turns(result: IterationResult) -> Iterator[Rollout]:
    for group in result.groups:
        for scored in group.rollouts:
            rollout = scored.rollout
            has_one_conversation = not rollout.trajectory.additional_histories
            if rollout.failure is None and has_one_conversation and len(list(choices_of(rollout))) > 1:
                yield rollout


def _excerpt(text: str | None) -> str | None:
    return None if text is None else text[:_SHOWN]
