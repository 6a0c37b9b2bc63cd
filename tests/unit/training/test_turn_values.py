"""Which turn decided a rollout: planted turns are found, and rollouts without one stay undecided."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.training.statistics.shares import newcombe, wilson
from learnloop_service.training.statistics.turn_values import (
    Sampled,
    TurnVerdict,
    credits,
    most_probes,
    next_probe,
    verdict,
)

SAMPLES = 16


def _bisected(chances: list[float], success: bool, draw: Random) -> tuple[TurnVerdict, int]:
    """Look for the decisive turn of a rollout with these chances of success before its turns. Returns the probes,
    too."""
    values: dict[int, Sampled] = {}
    while (turn := next_probe(values, len(chances), success)) is not None:
        values[turn] = Sampled(SAMPLES, sum(draw.random() < chances[turn - 1] for _ in range(SAMPLES)))
    return verdict(values, len(chances), success), len(values)


def test_a_planted_turn_is_found() -> None:
    draw, hits = Random(0), 0
    for number in range(200):
        turns = 4 + number % 7
        decisive = draw.randint(1, turns)
        result, probes = _bisected([0.9] * decisive + [0.1] * (turns - decisive), False, draw)
        assert probes <= most_probes(turns)
        hits += result.decisive is not None and result.decisive.turn == decisive
    assert hits >= 190


def test_without_a_decisive_turn_it_stays_undecided() -> None:
    draw, decided = Random(1), 0
    for number in range(200):
        turns = 4 + number % 7
        chances = [0.9 - 0.8 * turn / turns for turn in range(turns)]
        decided += _bisected(chances, False, draw)[0].decisive is not None
    assert decided <= 10


def test_a_turn_that_made_it_is_found_as_well() -> None:
    values = {1: Sampled(16, 1), 2: Sampled(16, 1), 3: Sampled(16, 15)}
    decisive = verdict(values, 3, True).decisive
    assert decisive is not None
    assert decisive.turn == 2
    assert round(decisive.points, 3) == 0.875
    assert 0 < decisive.low < decisive.points < decisive.high <= 1


def test_an_undecided_turn_names_what_is_missing() -> None:
    values = {1: Sampled(8, 5), 2: Sampled(8, 2)}
    undecided = verdict(values, 2, False)
    assert undecided.decisive is None
    assert undecided.closest is not None
    assert undecided.closest.turn == 1
    assert undecided.missing is not None
    assert undecided.missing_before(2) == [1, 2]
    assert undecided.missing_before(1) == [1]
    more = {
        turn: Sampled(8 + undecided.missing, round(sampled.share * (8 + undecided.missing)))
        for turn, sampled in values.items()
    }
    assert verdict(more, 2, False).decisive is not None


def test_where_the_first_value_is_the_result_nothing_is_looked_for() -> None:
    values = {1: Sampled(16, 0)}
    assert next_probe(values, 6, False) is None
    assert verdict(values, 6, False) == TurnVerdict(None, None, None)
    assert verdict({}, 6, False) == TurnVerdict(None, None, None)


@given(st.integers(1, 12), st.booleans(), st.randoms(use_true_random=False))
def test_a_search_ends_and_its_credits_are_of_neighbours(turns: int, success: bool, draw: Random) -> None:
    chances = [draw.random() for _ in range(turns)]
    values: dict[int, Sampled] = {}
    while (turn := next_probe(values, turns, success)) is not None:
        assert turn not in values
        values[turn] = Sampled(4, sum(draw.random() < chances[turn - 1] for _ in range(4)))
        assert len(values) <= most_probes(turns)
    for credit in credits(values, turns, success):
        assert credit.turn in values
        assert -1 <= credit.low <= credit.points + 1e-9
        assert credit.points - 1e-9 <= credit.high <= 1


def test_newcombes_interval_is_that_of_his_paper() -> None:
    """Table II of the paper, 56/70 and 48/80."""
    first, second = 56 / 70, 48 / 80
    low, high = newcombe(second, *wilson(second, 80), first, *wilson(first, 70))
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)
