"""Questions about an imported inbox: a JSON Lines file beside it, one object a line.

`{"question": ..., "answer": ..., "source_ids": [...], "inbox_address": ..., "query_date": "2001-05-15"}`;
the last two are optional. A hash of the question decides its split, so adding questions moves none.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from environment.base import Json, Scenario, Split
from environment.invented_names import split_of
from environment.scenario_order import draw as draw_from

_REQUIRED = {"question": str, "answer": str, "source_ids": list}
_OPTIONAL = ("inbox_address", "query_date")


class BadQuestion(ValueError):
    """A line of the questions file is unfit."""


def read_questions(path: Path, inbox_address: str, query_date: str) -> list[Scenario]:
    """All questions as scenarios, in file order. Raises BadQuestion naming the line."""
    with path.open(encoding="utf-8") as lines:
        return [
            _scenario(path, number, line, inbox_address, query_date)
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]


def _scenario(path: Path, number: int, line: str, inbox_address: str, query_date: str) -> Scenario:
    try:
        row: dict[str, Json] = json.loads(line)
    except ValueError as error:
        raise BadQuestion(f"{path.name} line {number}: not JSON: {error}") from error
    for key, kind in _REQUIRED.items():
        if not isinstance(row, dict) or not isinstance(row.get(key), kind) or not row[key]:
            raise BadQuestion(f"{path.name} line {number}: {key!r} must be a non-empty {kind.__name__}")
    for key in _OPTIONAL:
        if not isinstance(row.get(key, ""), str):
            raise BadQuestion(f"{path.name} line {number}: {key!r} must be a str")
    return Scenario(
        id=f"{path.stem}:{number}",
        split=split_of(row["question"]),
        task={
            "question": row["question"],
            "inbox_address": row.get("inbox_address", inbox_address),
            "query_date": row.get("query_date", query_date),
        },
        reference={"answer": row["answer"], "source_ids": [str(source) for source in row["source_ids"]]},
    )


def draw(questions: list[Scenario], split: Split, count: int, seed: int, start: int) -> Iterator[Scenario]:
    """Numbers `start` to `start + count` of whole passes over a split, each in another order.

    Raises ValueError if the split has no question.
    """
    pool = [scenario for scenario in questions if scenario.split == split]
    if not pool:
        raise ValueError(f"no question falls into the split {split!r}; add more than these {len(questions)}")
    return draw_from(pool, count, seed, start)
