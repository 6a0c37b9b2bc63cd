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
    ids = [id for each in chosen for id in (each.before.id, each.after.id)]
    async with database() as tx:
        rows = (await tx.execute(select(Trajectory).where(Trajectory.id.in_(ids)))).scalars().all()
    stored = {row.id: row for row in rows}
    return [_example(each, stored, before, after) for each in chosen]


def _example(
    each: ReportExample, stored: Mapping[str, Trajectory], before: Sequence[Row], after: Sequence[Row]
) -> Json:
    scenario = stored[each.before.id].scenario
    return {
        "scenario_id": each.scenario,
        "why": each.why,
        "task": scenario["task"],
        "reference": scenario["reference"],
        "before": _side(stored[each.before.id], right_of(before, each.before.scenario)),
        "after": _side(stored[each.after.id], right_of(after, each.after.scenario)),
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
    left, found = _MAX_CONVERSATION, []
    for message in messages:
        text = _cut(_text(message.get("content")), min(_MAX_MESSAGE, left))
        left = max(0, left - len(text.encode()))
        calls = []
        for call in message.get("tool_calls") or ():
            arguments = _cut(str(call["function"]["arguments"]), min(_MAX_MESSAGE, left))
            left = max(0, left - len(arguments.encode()))
            calls.append({"name": str(call["function"]["name"])[:100], "arguments": arguments})
        found.append({"role": message.get("role"), "text": text, "calls": calls})
        if left == 0:
            break
    missing = len(messages) - len(found)
    return [*found, {"role": "cut", "text": f"{missing} more messages", "calls": []}] if missing else found


def _text(content: Json) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)


def _cut(text: str, most: int) -> str:
    """Return at most that many bytes, with a note of what is missing."""
    whole = text.encode()
    if len(whole) <= most:
        return text
    kept = whole[:most].decode(errors="ignore")
    return f"{kept} [cut: {len(text) - len(kept)} more characters are in the stored trajectory]"
