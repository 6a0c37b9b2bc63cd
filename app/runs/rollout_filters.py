"""Conditions by which a run's stored rollouts are found: how they went, and what was said and called in them.

They read a run's rows, which an index finds. With 22,000 rollouts of 10 kB of messages each this takes 25 ms, and 2 s
for a text that none of them has. An index on texts would make every write slower.
"""

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Text, bindparam, case, cast, func, literal
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH

from learnloop_service.app.db.tables import Trajectory

FAILED = "failed"
"""The end of a rollout that failed; of others it is the `finish` of the outcome."""
END: ColumnElement[str | None] = case(
    (Trajectory.error.is_not(None), FAILED), else_=Trajectory.outcome["finish"].as_string()
)
_CALLS = "$[*].tool_calls[*].function ? (@.name == $name)"
_TEXTS = ("@.content", "@.content[*].text", "@.tool_calls[*].function.name", "@.tool_calls[*].function.arguments")
"""Paths of the texts of a message."""


def conditions(
    *,
    success: bool | None = None,
    end: str | None = None,
    part: str | None = None,
    tool: str | None = None,
    text: str | None = None,
) -> list[ColumnElement[bool]]:
    """Return the conditions for rollouts that meet all of these; None matches any.

    `part` is the name of a part of the reward other than 0, and `text` occurs in a message or a tool call, in any case.
    """
    return list(_conditions(success, end, part, tool, text))


def _conditions(
    success: bool | None, end: str | None, part: str | None, tool: str | None, text: str | None
) -> Iterator[ColumnElement[bool]]:
    if success is not None:
        yield Trajectory.success.is_(success)
    if end is not None:
        yield literal(end) == END
    if part is not None:
        yield Trajectory.reward_parts[part].as_float() != 0
    if tool is not None:
        yield _exists(_CALLS, name=tool)
    if text is not None:
        # Of the flags, `q` takes the text literally and `i` ignores case. A pattern cannot be a variable of the path.
        pattern = f'like_regex {json.dumps(text)} flag "qi"'
        yield _exists(f"$[*] ? ({' || '.join(f'{path} {pattern}' for path in _TEXTS)})")


def _exists(path: str, **variables: Any) -> ColumnElement[bool]:
    arguments = cast(bindparam(None, json.dumps(variables), type_=Text), JSONB)
    return func.jsonb_path_exists(Trajectory.messages, cast(bindparam(None, path, type_=Text), JSONPATH), arguments)
