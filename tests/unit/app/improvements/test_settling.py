"""Which checkpoint of a run a candidate is."""

from learnloop_service.app.improvements.settling import ComparedCheckpoint, accepted_of


def checkpoint(iteration: int, success: float, *, accepted: bool = True) -> ComparedCheckpoint:
    return ComparedCheckpoint(iteration, iteration, accepted, {}, {"success": {"mean": success}})


def test_the_first_that_reaches_the_target_counts_however_many_follow_it() -> None:
    first = [checkpoint(1, 0.5), checkpoint(2, 0.8)]
    assert accepted_of(first, 0.8) == first[1]
    assert accepted_of([*first, checkpoint(3, 0.9), checkpoint(4, 0.7)], 0.8) == first[1]


def test_the_newest_counts_while_none_reaches_the_target() -> None:
    compared = [checkpoint(1, 0.7), checkpoint(2, 0.6), checkpoint(3, 0.9, accepted=False)]
    assert accepted_of(compared, 0.8) == compared[1]
    assert accepted_of(compared, None) == compared[1]


def test_none_counts_that_was_not_shown_to_be_better() -> None:
    assert accepted_of([checkpoint(1, 0.9, accepted=False)], 0.8) is None
    assert accepted_of([], 0.8) is None
