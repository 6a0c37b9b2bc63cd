"""Tasks are counted by the patterns of their rollouts, whatever the order, and each task counts once."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.errors import NotFound
from learnloop_service.app.operations.failure_map import MOST_PATTERNS, Attempt, compared
from learnloop_service.app.operations.failure_sides import FailureSide
from learnloop_service.app.schemas.failures import FailedRolloutOut
from learnloop_service.training.diagnosis.patterns import Pattern

NOW, BEFORE = [FailureSide(f"iteration {number}", "run r", "e", []) for number in (2, 1)]


def attempts(task: str, ids: Sequence[str | None], side: str = "now") -> list[Attempt]:
    """Rollouts of a task with patterns of these ids; None is a success."""
    return [
        Attempt(
            FailedRolloutOut(trajectory_id=f"{side} {task} {number}", scenario_id=task, why=None, reason=None),
            None if id is None else Pattern(id, f"words of {id}"),
        )
        for number, id in enumerate(ids)
    ]


def tasks(patterns: Mapping[str, Sequence[str | None]], side: str = "now") -> dict[str, list[Attempt]]:
    return {task: attempts(task, ids, side) for task, ids in patterns.items()}


def test_a_task_counts_for_the_commonest_pattern_of_its_failures_if_half_of_its_rollouts_fail() -> None:
    failing = compared(
        (
            NOW,
            tasks(
                {
                    "solved": [None, None, "a/x"],
                    "half": [None, "a/x"],
                    "commonest": ["b/y", "a/x", "b/y"],
                    "first of equal ones": ["b/y", "a/x"],
                }
            ),
        )
    )
    assert failing.now.solved.tasks == 1
    assert [(pattern.id, pattern.now.tasks) for pattern in failing.patterns] == [("a/x", 2), ("b/y", 1)]
    assert [rollout.trajectory_id for rollout in failing.patterns[1].rollouts] == ["now commonest 0", "now commonest 2"]
    assert failing.before is None
    assert failing.patterns[0].before is None


def test_rare_patterns_of_an_ending_are_shown_together() -> None:
    common: dict[str, list[str | None]] = {
        f"{number} {n}": [f"a/{number:02}"] for number in range(MOST_PATTERNS) for n in range(2)
    }
    rare: dict[str, list[str | None]] = {"one": ["a/rare"], "two": ["a/rarer"], "three": ["b/rare"]}
    failing = compared((NOW, tasks(common | rare)))
    assert [(pattern.id, pattern.now.tasks) for pattern in failing.patterns[-3:]] == [
        ("a/11", 2),
        ("a/others", 2),
        ("b/others", 1),
    ]
    assert failing.patterns[-2].sentence == "a: other patterns"
    assert [rollout.scenario_id for rollout in failing.patterns[-2].rollouts] == ["one", "two"]


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(NotFound, match="no task in common"):
        compared((NOW, tasks({"one": [None]})), (BEFORE, tasks({"other": [None]})))


_IDS = st.lists(
    st.sampled_from([None, *(f"{ending}/{n}" for ending in "ab" for n in range(9))]), min_size=1, max_size=4
)
_SIDES = st.dictionaries(st.sampled_from("klmnopqrstuvw"), _IDS, min_size=1)


@given(_SIDES, _SIDES, st.randoms())
def test_every_task_counts_once_and_order_does_not_matter(now: Any, before: Any, chance: Any) -> None:
    both = sorted(now.keys() & before.keys())
    if not both:
        return
    sides = [(NOW, tasks(now)), (BEFORE, tasks(before, "before"))]
    failing = compared(*sides)
    assert failing.before is not None
    for counted, counts in (
        (failing.now, [pattern.now.tasks for pattern in failing.patterns]),
        (failing.before, [pattern.before.tasks for pattern in failing.patterns if pattern.before]),
    ):
        assert counted.tasks == len(both)
        assert counted.solved.tasks + sum(counts) == len(both)
    became = {pattern.id: sum(one.tasks for one in pattern.became) for pattern in failing.patterns}
    assert became == {pattern.id: pattern.before.tasks for pattern in failing.patterns if pattern.before}
    won = sum(one.tasks for pattern in failing.patterns for one in pattern.became if one.pattern is None)
    assert failing.now.solved.tasks - failing.before.solved.tasks == won - failing.lost_tasks
    shuffled = []
    for side, of in sides:
        items = list(of.items())
        chance.shuffle(items)
        shuffled.append((side, {task: chance.sample(those, len(those)) for task, those in items}))
    assert _without_examples(compared(*shuffled)) == _without_examples(failing)


def _without_examples(failing: Any) -> Any:
    """The map without the rollout that stands for a lost task: it is the first one that was saved."""
    lost = [(task.scenario_id, task.pattern) for task in failing.lost]
    return failing.model_copy(update={"lost": lost})
