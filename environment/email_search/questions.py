"""Questions about an imported inbox: a JSON Lines file beside it, one object a line.

`{"question": ..., "answer": ..., "source_ids": [...], "inbox_address": ..., "query_date": "2001-05-15"}`;
the last two are optional. A source is an email's id or its Message-ID. A hash of the question decides its split, so
adding questions moves none.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from environment.base import Json, Scenario, Split
from environment.invented_names import split_of
from environment.scenario_order import draw as draw_from

_REQUIRED = {"question": str, "answer": str, "source_ids": list}
ENOUGH = 50
"""Questions of which each split has one, but for one set in a hundred."""
_OPTIONAL = ("inbox_address", "query_date")


class BadQuestion(ValueError):
    """A line of the questions file is unfit."""


def read_questions(
    path: Path, inbox_address: str, query_date: str, id_of: Callable[[str], str | None]
) -> list[Scenario]:
    """All questions as scenarios, in file order. `id_of` gives the id of the email that a source means, or None.

    Raises BadQuestion naming the line.
    """
    with path.open(encoding="utf-8") as lines:
        return [
            _scenario(path, number, line, inbox_address, query_date, id_of)
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]


def _scenario(
    path: Path, number: int, line: str, inbox_address: str, query_date: str, id_of: Callable[[str], str | None]
) -> Scenario:
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
    sources = []
    for source in map(str, row["source_ids"]):
        if (id := id_of(source)) is None:
            raise BadQuestion(f"{path.name} line {number}: no email of the inbox has the id or Message-ID {source!r}")
        sources.append(id)
    return Scenario(
        id=f"{path.stem}:{number}",
        split=split_of(row["question"]),
        task={
            "question": row["question"],
            "inbox_address": row.get("inbox_address", inbox_address),
            "query_date": row.get("query_date", query_date),
        },
        reference={"answer": row["answer"], "source_ids": sources},
    )


def draw(questions: list[Scenario], split: Split, count: int, seed: int, start: int) -> Iterator[Scenario]:
    """Numbers `start` to `start + count` of whole passes over a split, each in another order.

    Raises ValueError if the split has no question.
    """
    pool = [scenario for scenario in questions if scenario.split == split]
    if not pool:
        sizes = ", ".join(f"{size} for {name}" for name, size in split_sizes(questions).items())
        raise ValueError(
            f"the inbox needs questions for train, validation and test, and has {sizes}; a hash of a question decides "
            f"which it is for (80, 10 and 10 percent), so add more: {ENOUGH} are nearly always enough"
        )
    return draw_from(pool, count, seed, start)


def split_sizes(questions: Sequence[Scenario]) -> dict[Split, int]:
    """Number of questions in each split."""
    counted = Counter(scenario.split for scenario in questions)
    return {split: counted[split] for split in get_args(Split)}
