"""Reads rollouts that have finished in an iteration that is not saved yet, from its journal."""

import asyncio
import json
from datetime import datetime

from sqlalchemy import func, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Journal
from learnloop_service.app.runs.journal_entries import text_of
from learnloop_service.app.schemas.trajectories import FinishedRollout, FinishedRollouts
from learnloop_service.environment.json_type import Json
from learnloop_service.training.journal import ROLLOUT, EntryName
from learnloop_service.training.rollout.chat import message_of


async def finished_rollouts(database: Database, run_id: str, limit: int) -> FinishedRollouts:
    """Return the newest `limit` rollouts in the journal of a run, newest first."""
    conditions = (Journal.run_id == run_id, Journal.name.startswith(f"{ROLLOUT}/"))
    newest = (
        select(Journal.iteration, Journal.name, Journal.value, Journal.kept_at)
        .where(*conditions)
        .order_by(Journal.kept_at.desc(), Journal.name)
        .limit(limit)
    )
    async with database() as tx:
        total = (await tx.execute(select(func.count()).where(*conditions))).scalar_one()
        rows = (await tx.execute(newest)).all()
    # In a thread, because a real model's rollouts take long to decompress and parse.
    rollouts = await asyncio.to_thread(lambda: [_read(*row) for row in rows])
    return FinishedRollouts(total=total, items=[rollout for rollout in rollouts if rollout is not None])


def _read(iteration: int, name: str, stored: bytes, finished_at: datetime) -> FinishedRollout | None:
    """Return the rollout of an entry, or None if the entry is damaged: the worker reports that and repeats its work."""
    try:
        entry, value = EntryName.parse(name), json.loads(text_of(stored) or "null")
    except ValueError:
        return None
    if entry is None or value is None:
        return None
    messages = [_message(item) for item in value["items"]]
    return FinishedRollout(
        id=value["id"],
        iteration=iteration,
        purpose=entry.purpose,
        scenario_id=value["scenario_id"],
        messages=messages,
        outcome=value["outcome"],
        error=value["error"],
        turns=sum(message.get("role") == "assistant" for message in messages),
        seconds=value["seconds"],
        finished_at=finished_at,
    )


def _message(item: Json) -> dict[str, Json]:
    from openai.types.chat.chat_completion import Choice

    return (
        item["message"]
        if "message" in item
        else message_of(Choice.model_validate({**item["choice"], "logprobs": None}))
    )
