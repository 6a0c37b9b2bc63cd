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
    """The tasks of a table of questions."""

    kind: Literal["conversations", "questions"] = "questions"
    environment: str = ANSWERS
    table: Table | None = None
    columns: dict[Part, str | None] = field(default_factory=dict)
    answers_by_id: dict[str, str] = field(default_factory=dict)
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
            "rows": [{"line": line, "cells": [cell[:_SHOWN_CHARACTERS] for cell in cells]} for line, cells in rows],
            **{str(part): name for part, name in self.columns.items()},
            "near_duplicates": self.near,
            "different": self.different,
            "answers": self.answers,
            "base": BASE,
        }


def read_questions(
    content: bytes, columns: Mapping[Part, str | None], *, header: bool, encoding: str | None
) -> QuestionImport:
    """Read a table of questions. `columns` has the names of its columns; where it has none, the column has a usual
    name. Raises NothingToImport."""
    try:
        table = read_table(content, header=header, encoding=encoding)
    except BadTable as error:
        raise NothingToImport(str(error)) from error
    imported = QuestionImport(lines=len(table.rows) + len(table.faults), table=table)
    indices = _column_indices(table, columns)
    imported.columns = {part: table.columns[indices[part]] if part in indices else None for part in PARTS}
    for line, why in table.faults:
        imported.leave_out(line, why)
    if {"question", "answer"} <= indices.keys():
        for line, cells in table.rows.items():
            _add(imported, line, {part: cells[index].strip() for part, index in indices.items()})
        _split(imported)
    imported.problem = _problem(imported, table.columns)
    return imported


def _problem(imported: QuestionImport, columns: Sequence[str]) -> NothingToImport | None:
    for part in PARTS[:2]:
        if imported.columns[part] is None:
            there = ", ".join(columns)
            return NothingToImport(f"name the column of the {part} in `{part}`; there are: {there}", part)
    if imported.different >= len(SPLITS):
        return None
    why = "; ".join(f"row {lines[0]}: {reason}" for reason, lines in imported.left_out.items())[:500]
    size = f"{counted(len(imported.tasks), 'question')}, of which {imported.different} differ"
    return NothingToImport(f"the file has {size}; the {len(SPLITS)} splits need as many. {why}".rstrip(" ."))


def _column_indices(table: Table, columns: Mapping[Part, str | None]) -> dict[Part, int]:
    """Return the indices of the columns. Raises NothingToImport if a named column does not exist."""
    indices = dict[Part, int]()
    names = [unicodedata.normalize("NFKC", column).casefold().strip().replace(" ", "_") for column in table.columns]
    for part in PARTS:
        if (name := columns.get(part)) is not None:
            if name not in table.columns:
                there = ", ".join(table.columns)
                raise NothingToImport(f"the file has no column {name!r}; there are: {there}", part)
            indices[part] = table.columns.index(name)
    for part in PARTS:
        usual = [names.index(name) for name in _USUAL[part].split() if name in names]
        if part not in indices and (free := [index for index in usual if index not in indices.values()]):
            indices[part] = free[0]
    if len(names) == 2 and "facts" not in indices:
        for part in PARTS[:2]:
            if part not in indices:
                indices[part] = next(index for index in range(2) if index not in indices.values())
    return indices


def _add(imported: QuestionImport, line: int, row: Mapping[Part, str]) -> None:
    for part in PARTS[:2]:
        if not row[part]:
            return imported.leave_out(line, f"it has no {part}")
    if long := next((part for part in row if len(row[part]) > MAX_CHARACTERS), None):
        return imported.leave_out(line, f"its {long} has more than {MAX_CHARACTERS:,} characters")
    question, answer = [_folded(row["question"]), _folded(row.get("facts", ""))], _folded(row["answer"])
    id = f"question.{sha256(repr(question).encode()).hexdigest()[:32]}"
    if (first := imported.answers_by_id.get(id)) is not None:
        other = ", and expects another answer" if first != answer else ""
        return imported.leave_out(line, f"it asks what an earlier row asks{other}")
    imported.answers_by_id[id] = answer
    imported.tasks.append({"id": id, **{part: text for part, text in row.items() if text}})
    return None


def _split(imported: QuestionImport) -> None:
    """Give each task its split."""
    kinds = [" ".join(words(task["answer"])) or task["answer"] for task in imported.tasks]
    groups = near_duplicates.groups([words(task["question"]) for task in imported.tasks], kinds)
    units = dict[int, str]()
    for task, group in zip(imported.tasks, groups, strict=True):
        units[group] = min(task["id"], units.get(group, task["id"]))
    splits, sizes = splits_of(units.values(), units.values()), Counter(groups)
    for task, group in zip(imported.tasks, groups, strict=True):
        task["split"] = splits[units[group]]
    imported.near = sum(size for size in sizes.values() if size > 1)
    imported.different, imported.answers = len(sizes), len(set(kinds))


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
