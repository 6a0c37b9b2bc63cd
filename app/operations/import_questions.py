"""Tables of questions with expected answers become tasks of the environment `answers`.

Splits follow from hashes of the questions, so neither the order of the rows nor another import changes them. Questions
that are nearly the same and have the same answer are in the same split.
"""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, get_args

from learnloop_service.app.datasets import near_duplicates
from learnloop_service.app.datasets.tables import BadTable, Table, read_table
from learnloop_service.app.operations.imported import SPLITS, Imported, NothingToImport, splits_of
from learnloop_service.environment.answers.environment import NAME as ANSWERS
from learnloop_service.environment.config_checks import MAX_CHARACTERS
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.judges.reference import words

Part = Literal["question", "answer", "facts"]
PARTS: Sequence[Part] = get_args(Part)
_USUAL: Mapping[Part, str] = {
    "question": "question questions prompt query input instruction message ticket subject request frage pregunta "
    "domanda вопрос 问题 質問",
    "answer": "answer answers expected expected_answer expected_output reference target label category output "
    "completion response solution antwort réponse respuesta risposta ответ 答案 回答",
    "facts": "facts context passage document background",
}
"""Names of columns that are taken without being named, the most likely first."""
_SHOWN_ROWS, _SHOWN_CHARACTERS = 5, 200
BASE = (
    "learnloop/tiny, the shipped base, knows invented mail only: it learns the wording of your own answers from "
    "demonstrations of them (warm_start), and little by reward alone. For more, add a base of 1.5B parameters or more: "
    "learnloop bases add Qwen/Qwen2.5-1.5B-Instruct"
)


@dataclass(slots=True)
class QuestionImport(Imported):
    """What a table has become."""

    kind: Literal["conversations", "questions"] = "questions"
    environment: str = ANSWERS
    table: Table | None = None
    columns: dict[Part, str | None] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)
    """The answer by the id of its question."""
    near: int = 0
    """How many questions are nearly the same as another one."""
    different: int = 0
    """How many questions there are if such ones count once."""
    answers: int = 0
    """How many different answers there are."""

    def details(self) -> Mapping[str, Json]:
        assert self.table is not None
        rows = list(self.table.rows.items())[:_SHOWN_ROWS]
        return {
            "form": self.table.form,
            "columns": list(self.table.columns),
            "rows": [{"line": line, "cells": [each[:_SHOWN_CHARACTERS] for each in cells]} for line, cells in rows],
            **{str(part): name for part, name in self.columns.items()},
            "near_duplicates": self.near,
            "different": self.different,
            "answers": self.answers,
            "base": BASE,
        }


def read_questions(
    content: bytes, given: Mapping[Part, str | None], *, header: bool, encoding: str | None
) -> QuestionImport:
    """Read a table of questions, whose columns are `given` or have usual names. Raises NothingToImport."""
    try:
        table = read_table(content, header=header, encoding=encoding)
    except BadTable as error:
        raise NothingToImport(str(error)) from error
    made = QuestionImport(lines=len(table.rows) + len(table.faults), table=table)
    places = _places(table, given)
    made.columns = {part: table.columns[places[part]] if part in places else None for part in PARTS}
    for line, why in table.faults:
        made.leave_out(line, why)
    if {"question", "answer"} <= places.keys():
        for line, cells in table.rows.items():
            _add(made, line, {part: cells[place].strip() for part, place in places.items()})
        _split(made)
    made.problem = _problem(made, table.columns)
    return made


def _problem(made: QuestionImport, columns: Sequence[str]) -> NothingToImport | None:
    for part in PARTS[:2]:
        if made.columns[part] is None:
            there = ", ".join(columns)
            return NothingToImport(f"name the column of the {part} in `{part}`; there are: {there}", part)
    if made.different >= len(SPLITS):
        return None
    why = "; ".join(f"row {lines[0]}: {reason}" for reason, lines in made.left_out.items())[:500]
    found = f"{counted(len(made.tasks), 'question')}, of which {made.different} differ"
    return NothingToImport(f"the file has {found}; the {len(SPLITS)} splits need as many. {why}".rstrip(" ."))


def _places(table: Table, given: Mapping[Part, str | None]) -> dict[Part, int]:
    """Return the places of the columns. Raises NothingToImport if one that is named is not there."""
    found = dict[Part, int]()
    names = [unicodedata.normalize("NFKC", each).casefold().strip().replace(" ", "_") for each in table.columns]
    for part in PARTS:
        if (name := given.get(part)) is not None:
            if name not in table.columns:
                there = ", ".join(table.columns)
                raise NothingToImport(f"the file has no column {name!r}; there are: {there}", part)
            found[part] = table.columns.index(name)
    for part in PARTS:
        usual = [names.index(name) for name in _USUAL[part].split() if name in names]
        if part not in found and (free := [each for each in usual if each not in found.values()]):
            found[part] = free[0]
    if len(names) == 2 and "facts" not in found:
        for part in PARTS[:2]:
            if part not in found:
                found[part] = next(place for place in range(2) if place not in found.values())
    return found


def _add(made: QuestionImport, line: int, row: Mapping[Part, str]) -> None:
    for part in PARTS[:2]:
        if not row[part]:
            return made.leave_out(line, f"it has no {part}")
    if long := next((part for part in row if len(row[part]) > MAX_CHARACTERS), None):
        return made.leave_out(line, f"its {long} has more than {MAX_CHARACTERS:,} characters")
    asked, answer = [_folded(row["question"]), _folded(row.get("facts", ""))], _folded(row["answer"])
    id = f"question.{sha256(repr(asked).encode()).hexdigest()[:32]}"
    if (first := made.seen.get(id)) is not None:
        other = ", and expects another answer" if first != answer else ""
        return made.leave_out(line, f"it asks what an earlier row asks{other}")
    made.seen[id] = answer
    made.tasks.append({"id": id, **{part: text for part, text in row.items() if text}})
    return None


def _split(made: QuestionImport) -> None:
    """Give each task its split."""
    kinds = [" ".join(words(each["answer"])) or each["answer"] for each in made.tasks]
    groups = near_duplicates.groups([words(each["question"]) for each in made.tasks], kinds)
    units = dict[int, str]()
    for task, group in zip(made.tasks, groups, strict=True):
        units[group] = min(task["id"], units.get(group, task["id"]))
    splits, sizes = splits_of(units.values(), units.values()), Counter(groups)
    for task, group in zip(made.tasks, groups, strict=True):
        task["split"] = splits[units[group]]
    made.near = sum(size for size in sizes.values() if size > 1)
    made.different, made.answers = len(sizes), len(set(kinds))


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
