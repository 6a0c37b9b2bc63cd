"""Reads stored replies again, to see whether every part of the service reads tool calls alike."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from learnloop_service.training.diagnosis.facts import Readings
from learnloop_service.training.protocol.tool_formats.formats import ToolFormat
from learnloop_service.training.types import IterationResult, Rollout

if TYPE_CHECKING:  # importing it takes long
    from openai.types.chat.chat_completion import Choice

_REPLIES = 16
"""Replies of training and of evaluation that are read again."""
_SHOWN = 200

Call = tuple[str, str]
"""Name and arguments of a call."""


def readings_of(result: IterationResult, tool_format: ToolFormat) -> dict[str, Readings]:
    """Return how many of the iteration's replies the model's format reads differently than they were recorded."""
    train = [scored.rollout for group in result.groups for scored in group.rollouts]
    evaluated = [scored.rollout for evaluation in result.evaluations for scored in evaluation.rollouts]
    by_kind = {"train": _readings(train, tool_format), "evaluation": _readings(evaluated, tool_format)}
    return {kind: readings for kind, readings in by_kind.items() if readings.read}


def _readings(rollouts: Sequence[Rollout], tool_format: ToolFormat) -> Readings:
    chosen = rollouts[:: max(1, len(rollouts) // _REPLIES)][:_REPLIES]
    read = [(rollout, text, recorded) for rollout in chosen for text, recorded in _first_reply(rollout)]
    different = [
        (rollout.id, text) for rollout, text, recorded in read if _calls(rollout, text, tool_format) != recorded
    ]
    if not different:
        return Readings(len(read), 0, tool_format=tool_format.name)
    id, text = different[0]
    return Readings(len(read), len(different), text[:_SHOWN], id, tool_format.name)


def _first_reply(rollout: Rollout) -> Iterator[tuple[str, list[Call]]]:
    """Yield the text and the recorded calls of the rollout's first reply, if tools were offered and its tokens are
    known."""
    if not rollout.trajectory.tools:
        return
    for item in rollout.trajectory.messages_and_choices:
        if not isinstance(item, dict):
            if (text := _sampled_text(item)) is not None:
                yield text, _recorded(item)
            return


def _sampled_text(choice: "Choice") -> str | None:
    """Return the text of the sampled tokens; None if the server does not report their bytes."""
    tokens = choice.logprobs and choice.logprobs.content
    if not tokens or any(token.bytes is None for token in tokens):
        return None
    return b"".join(bytes(token.bytes or ()) for token in tokens).decode(errors="replace")


def _recorded(choice: "Choice") -> list[Call]:
    calls = choice.message.tool_calls or ()
    return [(call.function.name, call.function.arguments) for call in calls if call.type == "function"]


def _calls(rollout: Rollout, text: str, tool_format: ToolFormat) -> list[Call]:
    tools = [dict(tool) for tool in rollout.trajectory.tools or ()]
    return [(call.name, call.arguments) for call in tool_format.read(text, tools=tools).tool_calls]
