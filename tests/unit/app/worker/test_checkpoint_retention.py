"""Which checkpoints a run keeps."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.domain.stored_request import KeptCheckpoints
from learnloop_service.app.worker.checkpoint_retention import RatedCheckpoint, spread, to_delete

MADE = [RatedCheckpoint(step, success) for step, success in enumerate([0.1, 0.5, None, 0.9, 0.2, 0.9, 0.4, 0.3])]


def _steps_after_deletion(**choice: int | None) -> list[int]:
    keep = KeptCheckpoints.model_validate({"keep_best": 1, "keep_last": 1} | choice)
    gone = to_delete(MADE, keep, best_step=3)
    return [checkpoint.step for checkpoint in MADE if checkpoint.step not in gone]


def test_the_best_the_last_and_every_so_many() -> None:
    # 3 is what the run calls its best, 5 the later of two equal ones, and the newest two stay to be stepped back to
    assert _steps_after_deletion() == [3, 5, 6, 7]
    assert _steps_after_deletion(keep_best=3) == [1, 3, 5, 6, 7]
    assert _steps_after_deletion(keep_last=3) == [3, 5, 6, 7]
    assert _steps_after_deletion(keep_every=2) == [0, 2, 3, 4, 5, 6, 7]
    assert _steps_after_deletion(keep_every=100) == [0, 3, 5, 6, 7]
    assert _steps_after_deletion(keep_evaluated=1) == [3, 4, 5, 6, 7]
    assert _steps_after_deletion(keep_evaluated=2) == [0, 3, 4, 5, 6, 7]
    assert _steps_after_deletion(keep_last=8) == list(range(8))


@given(
    st.dictionaries(st.integers(0, 200), st.none() | st.floats(0, 1), min_size=1),
    st.integers(1, 10),
    st.integers(1, 10),
    st.none() | st.integers(1, 20),
    st.integers(0, 10),
    st.data(),
)
def test_what_is_needed_is_never_deleted(
    successes: dict[int, float | None],
    keep_best: int,
    keep_last: int,
    keep_every: int | None,
    keep_evaluated: int,
    data: st.DataObject,
) -> None:
    best = data.draw(st.sampled_from(sorted(successes)))
    rows = data.draw(st.permutations([RatedCheckpoint(step, success) for step, success in successes.items()]))
    keep = KeptCheckpoints(
        keep_best=keep_best, keep_last=keep_last, keep_every=keep_every, keep_evaluated=keep_evaluated
    )
    gone = to_delete(rows, keep, best_step=best)
    assert set(gone) <= set(successes)
    assert best not in gone
    assert not set(sorted(successes)[-2:]) & set(gone)
    remaining = set(successes) - set(gone)
    assert len(remaining) >= min(len(successes), keep_last)
    assert len(remaining) <= keep_best + max(keep_last, 2) + keep_evaluated + 1 + (
        len(successes) if keep_every is not None else 0
    )
    # What was pruned once needs no more pruning.
    again = [row for row in rows if row.step in remaining]
    assert not to_delete(again, keep, best_step=best)


def test_few_evaluated_ones_are_spread_over_a_long_run() -> None:
    remaining: set[int] = set()
    for step in range(0, 1_000, 10):  # as they are made: what was deleted cannot come back
        remaining = spread([*remaining, step], 6)
    assert len(remaining) == 6
    assert {0, 990} <= remaining
    steps = sorted(remaining)
    assert max(later - earlier for earlier, later in pairwise(steps)) <= 500
