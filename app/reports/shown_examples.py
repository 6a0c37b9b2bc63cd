"""Reads the rollouts that a report shows in full, cut to the room that it has for them."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.reports.examples import RULE, ReportExample, examples, right_of
from learnloop_service.app.reports.rollouts import Row, compared
from learnloop_service.environment.json_type import Json

_MAX_MESSAGE = 3_000
_MAX_CONVERSATION = 9_000
"""Maximum sizes of a text and of all texts of a rollout, in bytes. The texts are in the file twice: as data and as
text."""


async def shown_examples(database: Database, document: Json) -> Json:
    """Return the rule, and the tasks that it chooses from the rollouts that the document lists."""
    return {"rule": RULE, "items": await _items(database, document)}


async def _items(database: Database, document: Json) -> list[Json]:
    if (ends := compared(document)) is None:
        return []
    before, after = ends
    chosen = examples(before, after, document["scenarios"])
    ids = [id for example in chosen for id in (example.before.id, example.after.id)]
    async with database() as tx:
        rows = (await tx.execute(select(Trajectory).where(Trajectory.id.in_(ids)))).scalars().all()
    stored = {row.id: row for row in rows}
    return [_example(example, stored, before, after) for example in chosen]


def _example(
    example: ReportExample, stored: Mapping[str, Trajectory], before: Sequence[Row], after: Sequence[Row]
) -> Json:
    scenario = stored[example.before.id].scenario
    return {
        "scenario_id": example.scenario,
        "why": example.why,
        "task": scenario["task"],
        "reference": scenario["reference"],
        "before": _side(stored[example.before.id], right_of(before, example.before.scenario)),
        "after": _side(stored[example.after.id], right_of(after, example.after.scenario)),
    }


def _side(row: Trajectory, right: tuple[int, int]) -> Json:
    return {
        "trajectory_id": row.id,
        "iteration": row.iteration,
        "step": row.step,
        "right": right[0],
        "samples": right[1],
        "success": row.success,
        "why_no_success": row.why_no_success,
        "score": row.score,
        "score_explanation": _cut(row.score_explanation or "", _MAX_MESSAGE),
        "reward": row.reward,
        "outcome": row.outcome,
        "error": row.error,
        "turns": row.turns,
        "messages": _messages(row.messages),
    }


def _messages(messages: Sequence[Json]) -> list[Json]:
    """Return role, text and tool calls of the messages, cut to what a report has room for."""
    room, cut_messages = _MAX_CONVERSATION, []
    for message in messages:
        text = _cut(_text(message.get("content")), min(_MAX_MESSAGE, room))
        room = max(0, room - len(text.encode()))
        calls = []
        for call in message.get("tool_calls") or ():
            arguments = _cut(str(call["function"]["arguments"]), min(_MAX_MESSAGE, room))
            room = max(0, room - len(arguments.encode()))
            calls.append({"name": str(call["function"]["name"])[:100], "arguments": arguments})
        cut_messages.append({"role": message.get("role"), "text": text, "calls": calls})
        if room == 0:
            break
    missing = len(messages) - len(cut_messages)
    return (
        [*cut_messages, {"role": "cut", "text": f"{missing} more messages", "calls": []}] if missing else cut_messages
    )


def _text(content: Json) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)


def _cut(text: str, most: int) -> str:
    """Return at most that many bytes, with a note of what is missing."""
    whole = text.encode()
    if len(whole) <= most:
        return text
    beginning = whole[:most].decode(errors="ignore")
    return f"{beginning} [cut: {len(text) - len(beginning)} more characters are in the stored trajectory]"
