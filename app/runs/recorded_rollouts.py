"""Reads the conversation of a stored rollout, with its token ids where they were archived."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import RolloutRecord, Trajectory
from learnloop_service.app.runs.journal_entries import text_of
from learnloop_service.app.runs.stored_rollouts import scenario_of
from learnloop_service.environment.base import Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.training.journal import EntryName, load_rollout
from learnloop_service.training.phases import Purpose
from learnloop_service.training.rollout.fork import Message

if TYPE_CHECKING:
    from openai.types.chat.chat_completion import Choice


@dataclass(frozen=True, slots=True)
class RecordedRollout:
    """A stored rollout as it can be replayed."""

    scenario: Scenario
    conversation: "Sequence[Message | Choice]"
    """Its messages in order. The model's are choices, with token ids if the rollout was archived."""
    tools: Sequence[Json]
    """The tools that the model was offered. Only an archived rollout has them exactly as the model was shown them: the
    database does not keep the order of keys."""
    number: int | None
    """Its number among the rollouts of its iteration that were made for the same purpose; None if it was not
    archived."""


async def recorded_rollout(database: Database, row: Trajectory) -> RecordedRollout:
    """Return the rollout of a trajectory."""
    scenario = scenario_of(row)
    if row.run_id is not None and (purpose := purpose_of(row)) is not None:
        query = select(RolloutRecord.name, RolloutRecord.value).where(
            RolloutRecord.run_id == row.run_id,
            RolloutRecord.iteration == row.iteration,
            RolloutRecord.name.startswith(f"rollout/{purpose}/"),
        )
        async with database() as tx:
            records = (await tx.execute(query)).all()
        recorded = await asyncio.to_thread(_find, row.id, scenario, records)
        if recorded is not None:
            return recorded
    conversation = await asyncio.to_thread(lambda: [_choice(message) for message in row.messages])
    return RecordedRollout(scenario, conversation, row.tools, None)


def purpose_of(row: Trajectory) -> Purpose | None:
    """Return what a rollout of a run was made for; None for a question."""
    match row.kind:
        case "train":
            return Purpose.TRAIN if row.replaces is None else Purpose.REPLACEMENT
        case "showcase":
            return Purpose.SHOWCASE
        case "evaluation":
            return Purpose(f"{row.split}.{row.mode}")
    return None


def _find(id: str, scenario: Scenario, records: Sequence[Any]) -> RecordedRollout | None:
    begins = f'{{"id": "{id}"'
    for name, value in records:
        text = text_of(value)
        if text is not None and text.startswith(begins):
            entry, rollout = EntryName.parse(name), load_rollout(scenario, text)
            assert entry is not None
            conversation = cast(Any, rollout.trajectory.messages_and_choices)
            return RecordedRollout(scenario, conversation, rollout.trajectory.tools or [], entry.number)
    return None


def _choice(message: dict[str, Json]) -> "Message | Choice":
    """Return a message as a choice, without token ids, if the model wrote it."""
    from openai.types.chat.chat_completion import Choice

    if message["role"] != "assistant":
        return message
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    return Choice.model_validate({"index": 0, "finish_reason": reason, "message": message})
