"""What an imported file has become: demonstrations and tasks, and why the rest was left out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, get_args

from learnloop_service.app.agent_sessions.task_draw import split_of
from learnloop_service.environment.base import Split
from learnloop_service.environment.json_type import Json

SPLITS: Sequence[Split] = get_args(Split)
_NAMED_LINES = 5


class NothingToImport(ValueError):
    """Nothing in the file can be imported; the message says why. `field` is the parameter at fault, if it is one."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclass(slots=True)
class Imported:
    """The demonstrations and tasks of an imported file."""

    kind: Literal["conversations", "questions"]
    environment: str
    """The environment that the tasks are for."""
    lines: int = 0
    demonstrations: list[dict[str, Json]] = field(default_factory=list)
    tasks: list[dict[str, Json]] = field(default_factory=list)
    owners: dict[str, str] = field(default_factory=dict)
    """Hash of the user by id of a demonstration or task."""
    left_out: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of the lines by the reason why they were left out."""
    users: set[str] = field(default_factory=set)
    """Hashes of the users who are named."""
    problem: NothingToImport | None = None
    """Why nothing can be stored, although there is something to show."""

    @property
    def answered(self) -> bool:
        """Whether each task has the answer that would have been right."""
        return all("answer" in task.get("reference", task) for task in self.tasks)

    def leave_out(self, line: int, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(line)

    def reasons(self) -> list[dict[str, Json]]:
        """Return the reasons, the most frequent first, with their first lines."""
        ordered = sorted(self.left_out.items(), key=lambda item: -len(item[1]))
        return [{"reason": why, "count": len(lines), "lines": lines[:_NAMED_LINES]} for why, lines in ordered]

    def details(self) -> Mapping[str, Json]:
        """Return the figures that only this kind of file has."""
        return {}


def splits_of(units: Iterable[str], with_tasks: Iterable[str]) -> dict[str, Split]:
    """Return the split of each unit: by the hash, except that a split without tasks gets a unit that has some."""
    splits = {unit: split_of(unit) for unit in units}
    ordered = sorted(set(with_tasks), key=lambda unit: sha256(unit.encode()).digest())
    for split in SPLITS:
        counts = Counter(splits[unit] for unit in ordered)
        if not counts[split] and (spare := [unit for unit in ordered if counts[splits[unit]] > 1]):
            splits[spare[0]] = split
    return splits
