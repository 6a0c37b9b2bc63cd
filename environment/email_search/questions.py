"""Questions about an imported inbox: a JSON Lines file next to it with one object per line, or a list in a request.

`{"question": ..., "answer": ..., "source_ids": [...], "inbox_address": ..., "query_date": "2001-05-15", "split": ...,
"id": ...}`; the last four are optional. A source is an email's id or its Message-ID. Without a split a hash of the
question decides it, so adding questions moves none.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from learnloop_service.environment.base import Json, Scenario, Split
from learnloop_service.environment.given_scenarios import SPLITS, check_apart
from learnloop_service.environment.invented_names import split_of
from learnloop_service.environment.scenario_order import draw as draw_from
from learnloop_service.environment.words import words_of

_REQUIRED = {"question": str, "answer": str, "source_ids": list}
ENOUGH = 50
"""Number of questions with which all splits are non-empty in 99 of 100 sets."""
MAX_QUESTIONS = 100_000
"""Most questions in one set."""
_OPTIONAL = ("inbox_address", "query_date", "split", "id")
IdOf = Callable[[str], str | None]
"""Returns the id of the email that a source names, or None if there is none."""


class BadQuestion(ValueError):
    """A question is invalid; the message says which."""


def read_questions(path: Path, inbox_address: str, query_date: str, id_of: IdOf) -> list[Scenario]:
    """Return all questions as scenarios, in file order. Raises BadQuestion naming the line."""
    with path.open(encoding="utf-8") as lines:
        return [
            _scenario(f"{path.name} line {number}", f"{path.stem}:{number}", row, inbox_address, query_date, id_of)
            for number, row in _rows(path.name, lines)
        ]


def given_questions(rows: Json, inbox_address: str, query_date: str, id_of: IdOf) -> list[Scenario]:
    """Return the questions of a request as scenarios, in order. Raises BadQuestion naming the first invalid one.

    Either all name their split or none does. No question occurs in more than one split.
    """
    if not isinstance(rows, list) or not len(SPLITS) <= len(rows) <= MAX_QUESTIONS:
        raise BadQuestion(f"scenarios must be a list of {len(SPLITS)} to {MAX_QUESTIONS} questions")
    scenarios = []
    for position, row in enumerate(rows):
        where = f"scenario number {position}"
        if isinstance(row, dict) and (unknown := sorted(set(row) - {*_REQUIRED, *_OPTIONAL})):
            raise BadQuestion(f"{where} has no {', '.join(unknown)}; it takes: {', '.join((*_REQUIRED, *_OPTIONAL))}")
        scenarios.append(_scenario(where, f"given.{position}", row, inbox_address, query_date, id_of))
    named = ["split" in row for row in rows]
    if any(named) and not all(named):
        raise BadQuestion("either no scenario names its split, or each does")
    check_apart(scenarios, _question_key, "asks the same as {}: what is held out must not be trained on", BadQuestion)
    return scenarios


def _question_key(scenario: Scenario) -> str:
    return f"{scenario.task['inbox_address']}:{words_of(scenario.task['question'])}"


def _rows(name: str, lines: Iterator[str]) -> Iterator[tuple[int, Json]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise BadQuestion(f"{name} line {number}: not JSON: {error}") from error


def _scenario(where: str, id: str, row: Json, inbox_address: str, query_date: str, id_of: IdOf) -> Scenario:
    for key, kind in _REQUIRED.items():
        if not isinstance(row, dict) or not isinstance(row.get(key), kind) or not row[key]:
            raise BadQuestion(f"{where}: {key!r} must be a non-empty {kind.__name__}")
    for key in _OPTIONAL:
        if not isinstance(row.get(key, ""), str):
            raise BadQuestion(f"{where}: {key!r} must be a str")
    if row.get("split", "train") not in SPLITS:
        raise BadQuestion(f"{where}: 'split' must be one of {', '.join(SPLITS)}, not {row['split']!r}")
    return Scenario(
        id=row.get("id") or id,
        split=row.get("split") or split_of(row["question"]),
        task={
            "question": row["question"],
            "inbox_address": row.get("inbox_address", inbox_address),
            "query_date": row.get("query_date", query_date),
        },
        reference={"answer": row["answer"], "source_ids": list(_sources(where, row, id_of))},
    )


def _sources(where: str, row: Mapping[str, Json], id_of: IdOf) -> Iterator[str]:
    for source in map(str, row["source_ids"]):
        if (id := id_of(source)) is None:
            raise BadQuestion(f"{where}: no email of the inbox has the id or Message-ID {source!r}")
        yield id


def draw(questions: list[Scenario], split: Split, count: int, seed: int, start: int) -> Iterator[Scenario]:
    """Yield numbers `start` to `start + count` of whole passes over a split, each in another order.

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
    """Return the number of questions in each split."""
    counted = Counter(scenario.split for scenario in questions)
    return {split: counted[split] for split in SPLITS}
