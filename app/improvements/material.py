"""The material that a person, a coding agent or a model reads in order to propose a prompt.

It has training tasks only. What rollouts contain is data from anywhere: secrets and orders to the reader are removed
from it, long messages are cut, and it is part of a JSON document.
"""

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, func, or_, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.errors import Conflict
from learnloop_service.app.improvements.champion import Champion
from learnloop_service.app.improvements.guard import texts_in
from learnloop_service.app.improvements.orders import without_orders
from learnloop_service.app.operations.failure_map import failure_map
from learnloop_service.app.operations.failure_sides import FailureSide, evaluation_sides
from learnloop_service.app.schemas.failures import FailedRolloutOut, FailurePatternOut
from learnloop_service.app.settings import Settings
from learnloop_service.app.tracing.redaction import Redactor, secrets_of
from learnloop_service.environment.json_type import Json
from learnloop_service.training.prompt import MAX_BYTES, MAX_PARTS, SYSTEM
from learnloop_service.training.rollout.histories import transcript

_ROLLOUTS, _SOLVED = 3, 2
"""Maximum number of rollouts of each pattern, and of solved ones."""
_MESSAGE_BYTES = 3_000
_INSTRUCTING = ("system", "developer")
"""Roles of messages with an agent's own texts."""
_FIRST, _LAST = 8, 32
"""Number of messages at both ends of a long rollout that are in the material."""
_WITH_PARTS = 20
"""Number of the newest earlier candidates whose texts are in the material."""
_READ = 4_000
"""Number of characters of a text that are searched for secrets and orders before it is cut."""


async def material(
    database: Database,
    settings: Settings,
    goal: str,
    champion: Champion,
    evaluation_id: str,
    earlier: Sequence[Mapping[str, Json]] = (),
) -> dict[str, Json]:
    """Return the material, as JSON, from the rollouts of the first model in an evaluation. `earlier` are prompts that
    were proposed before, with their texts in `parts`.

    Raises Conflict for an evaluation of held-out tasks, NotFound without judged rollouts.
    """
    side = next(iter((await evaluation_sides(database, evaluation_id)).values()))
    if side.split != "train":
        raise Conflict(f"Evaluation {evaluation_id} is of {side.split} tasks. Proposers read training tasks only.")
    failures = await failure_map(database, side, None)
    examples = {pattern.id: _examples(pattern.rollouts) for pattern in failures.patterns}
    rows = await _rows(database, side, [id for of_pattern in examples.values() for id in of_pattern])
    clean = _Cleaner(Redactor(secrets_of(settings)), _INSTRUCTING if SYSTEM in champion.parts else ())
    without_parts = len(earlier) - _WITH_PARTS
    return await asyncio.to_thread(
        lambda: {
            "goal": goal,
            "prompt": {
                "parts": dict(champion.parts),
                "placeholders": list(champion.placeholders),
                "limits": {"parts": MAX_PARTS, "bytes": MAX_BYTES},
            },
            "tasks": failures.now.tasks,
            "solved_tasks": failures.now.solved.tasks,
            "patterns": [
                clean.pattern(pattern, [rows[id] for id in examples[pattern.id] if id in rows])
                for pattern in failures.patterns
            ],
            "solved": [clean.rollout(row) for row in rows.values() if row.success],
            "earlier": [
                {**row, "why": clean.value(row["why"]), **({"parts": None} if index < without_parts else {})}
                for index, row in enumerate(earlier)
            ],
        }
    )


async def recorded_tools(database: Database, evaluation_id: str) -> list[Json]:
    """Return the tools of the first rollout of an evaluation that has some, in the form of OpenAI."""
    row = Trajectory
    query = select(row.tools).where(row.evaluation_id == evaluation_id, row.tools != []).order_by(row.seq).limit(1)
    async with database() as tx:
        return (await tx.execute(query)).scalar_one_or_none() or []


def rollout_texts(material: Mapping[str, Json]) -> dict[str, list[str]]:
    """Return the texts of the rollouts in the material by id, which the guard looks for in new prompts. An agent's own
    system message is no quotation."""
    rollouts = [*material["solved"], *(rollout for pattern in material["patterns"] for rollout in pattern["rollouts"])]
    texts = dict[str, list[str]]()
    for rollout in rollouts:
        said = [message for message in rollout["messages"] if message.get("role") not in _INSTRUCTING]
        texts[rollout["id"]] = list(texts_in({**rollout, "messages": said}))
    return texts


def _examples(rollouts: Sequence[FailedRolloutOut]) -> list[str]:
    """Return the ids of some rollouts of a pattern, of as many tasks as possible."""
    first = {rollout.scenario_id: rollout.trajectory_id for rollout in reversed(rollouts)}
    others = (rollout.trajectory_id for rollout in rollouts if rollout.trajectory_id not in first.values())
    return [*reversed(first.values()), *others][:_ROLLOUTS]


async def _rows(database: Database, side: FailureSide, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return the rollouts with these ids and some solved ones, by id."""
    row = Trajectory
    columns = (row.id, row.scenario_id, row.scenario, row.messages, row.additional_histories, row.success)
    query = select(*columns, row.why_no_success, row.score_explanation, row.error)
    first = select(func.min(row.seq)).where(*side.rollouts, row.success.is_(True)).group_by(row.scenario_id)
    solved = first.order_by(row.scenario_id).limit(_SOLVED)
    async with database() as tx:
        rows: Iterable[Any] = await tx.execute(query.where(or_(row.id.in_(ids), row.seq.in_(solved))))
        return {saved.id: saved for saved in rows}


class _Cleaner:
    """Makes what rollouts and proposers have written safe to read."""

    def __init__(self, redactor: Redactor, left_out: Container[str]) -> None:
        """`left_out` are the roles of messages that the champion's parts have already."""
        self._redactor = redactor
        self._left_out = left_out

    def value(self, value: Json) -> Json:
        """Return a JSON value without secrets and orders, its texts cut."""
        return self._without_orders(self._redactor.value(value))

    def pattern(self, pattern: FailurePatternOut, rollouts: Iterable[Row[Any]]) -> dict[str, Json]:
        """Return a pattern with its rollouts."""
        words = {"id": pattern.id, "sentence": self.value(pattern.sentence), "tasks": pattern.now.tasks}
        return {**words, "rollouts": [self.rollout(row) for row in rollouts]}

    def rollout(self, row: Row[Any]) -> dict[str, Json]:
        """Return a rollout."""
        messages = transcript([row.messages, *(history["messages"] for history in row.additional_histories)])
        shown = [_message(message) for message in messages if message.get("role") not in self._left_out]
        if len(shown) > _FIRST + _LAST:
            left_out = {"left_out": f"{len(shown) - _FIRST - _LAST} messages"}
            shown = [*shown[:_FIRST], left_out, *shown[-_LAST:]]
        return {
            "id": row.id,
            "scenario_id": row.scenario_id,
            **{key: self.value(row.scenario.get(key)) for key in ("task", "reference")},
            "messages": [self.value(message) for message in shown],
            "why": self.value(row.why_no_success if row.error is None else row.error),
            "reason": self.value(row.score_explanation),
        }

    def _without_orders(self, value: Json) -> Json:
        if isinstance(value, str):
            return _cut(without_orders(value[:_READ]), len(value))
        if isinstance(value, Mapping):
            return {key: self._without_orders(item) for key, item in value.items()}
        return [self._without_orders(item) for item in value] if isinstance(value, list) else value


def _message(message: Mapping[str, Json]) -> dict[str, Json]:
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    short = {"role": message.get("role"), "content": message.get("content")}
    named = [{"name": call.get("name"), "arguments": call.get("arguments")} for call in calls]
    return short | {"tool_calls": named} if named else short


def _cut(text: str, length: int) -> str:
    """Return the text, or its beginning with the number of characters that it had."""
    cut = text.encode(errors="replace")[:_MESSAGE_BYTES].decode(errors="ignore")
    return text if len(cut) == len(text) and length <= _READ else f"{cut} [cut: {length} characters in all]"
