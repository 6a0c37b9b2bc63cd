"""Chooses the held-out tasks that a report shows in full, by a rule that does not flatter."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from learnloop_service.app.reports.rollouts import Row, scored
from learnloop_service.training.scoring import successes

COUNT = 5
RULE = (
    "First the task whose success fell most, if one fell; then one that is still not solved; then others in the order "
    "of the SHA-256 of their ids. Of several rollouts the first one is shown; of a task that fell, "
    "the best one before training and the worst one after it."
)
FELL, UNSOLVED, DRAWN = "fell most", "still not solved", "drawn"


class ReportExample(NamedTuple):
    """A task and the rollouts that show it, before and after training."""

    scenario: str
    why: str
    before: Row
    after: Row


def examples(before: Sequence[Row], after: Sequence[Row], scenarios: Sequence[str]) -> list[ReportExample]:
    """Return the tasks to show. The rollouts are those of the first and of the latest headline evaluation."""
    earlier, later = (successes(scored(rows, scenarios)) for rows in (before, after))
    first, last = _by_scenario(before, scenarios), _by_scenario(after, scenarios)
    return [
        ReportExample(
            id,
            why,
            _first_rollout(first[id], -1 if why == FELL else 0),
            _first_rollout(last[id], 1 if why == FELL else 0),
        )
        for id, why in _chosen(earlier, later)
    ]


def right_of(rows: Sequence[Row], scenario: int) -> tuple[int, int]:
    """Return how many rollouts of a task succeeded, and how many there are."""
    of_task = [row for row in rows if row.scenario == scenario]
    return sum(bool(row.success) for row in of_task), len(of_task)


class SuccessChanges(NamedTuple):
    """Numbers of tasks by how their success changed."""

    better: int
    worse: int
    same: int


def changes(before: Sequence[Row], after: Sequence[Row], scenarios: Sequence[str]) -> SuccessChanges:
    """Compare the success of the tasks that both evaluations have."""
    earlier, later = (successes(scored(rows, scenarios)) for rows in (before, after))
    changes_of_tasks = [later[id] - earlier[id] for id in earlier.keys() & later.keys()]
    return SuccessChanges(
        sum(change > 0 for change in changes_of_tasks),
        sum(change < 0 for change in changes_of_tasks),
        sum(change == 0 for change in changes_of_tasks),
    )


def _chosen(earlier: Mapping[str, float], later: Mapping[str, float]) -> list[tuple[str, str]]:
    drawn = sorted(earlier.keys() & later.keys(), key=lambda id: sha256(id.encode()).digest())
    change = {id: later[id] - earlier[id] for id in drawn}
    fallen = min(drawn, key=lambda id: change[id], default=None)
    chosen = {} if fallen is None or change[fallen] >= 0 else {fallen: FELL}
    unsolved = next((id for id in drawn if later[id] == 0 and id not in chosen), None)
    if unsolved is not None:
        chosen[unsolved] = UNSOLVED
    for id in drawn:
        chosen.setdefault(id, DRAWN)
    return list(chosen.items())[:COUNT]


def _by_scenario(rows: Sequence[Row], scenarios: Sequence[str]) -> dict[str, list[Row]]:
    by_scenario: dict[str, list[Row]] = {}
    for row in rows:
        by_scenario.setdefault(scenarios[row.scenario], []).append(row)
    return by_scenario


def _first_rollout(rows: Sequence[Row], order: int) -> Row:
    """Return the first rollout, with successes last (order 1) or first (order -1); 0 keeps the order."""
    return sorted(rows, key=lambda row: order * bool(row.success))[0]
