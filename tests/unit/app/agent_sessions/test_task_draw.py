"""Drawing tasks: uniformly over users, by a filter, and with the right probabilities."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnloop_service.app.agent_sessions.task_draw import DrawableTask, draw_tasks, split_of

_DRAWS = 4_000


def pool(*tasks_of_user: int, selected: int = 0, arms: tuple[str | None, ...] = (None,)) -> list[DrawableTask]:
    """Users with that many tasks each, of which the first `selected` of each are selected."""
    return [
        DrawableTask(f"session.{user}.{task}", f"user{user}", arms[user % len(arms)], task < selected)
        for user, count in enumerate(tasks_of_user)
        for task in range(count)
    ]


def test_each_user_is_equally_likely_however_much_he_asked() -> None:
    tasks = pool(1, 2, 7, 40)
    draws = Counter(
        id.split(".")[1] for seed in range(_DRAWS) for id in draw_tasks(tasks, 1, str(seed), selecting=False)
    )
    assert sum(draws.values()) == _DRAWS
    for count in draws.values():
        assert count == pytest.approx(_DRAWS / 4, rel=0.12)  # four standard deviations


def test_a_task_keeps_the_probability_with_which_it_is_included() -> None:
    tasks = pool(1, 3, 9, selected=2, arms=("stable", "candidate"))
    draws, probabilities = Counter[str](), dict[str, float]()
    for seed in range(_DRAWS):
        drawn = draw_tasks(tasks, 5, str(seed), selecting=True)
        draws.update(drawn.keys())
        probabilities |= drawn
    assert draws.keys() == {task.id for task in tasks}
    for id, probability in probabilities.items():
        assert draws[id] / _DRAWS == pytest.approx(probability, abs=0.035), id


def test_an_arm_gets_the_share_of_its_users_in_the_selected_half() -> None:
    """The candidate serves its users worse: all of its tasks are selected, and few of the others'."""
    users = 20
    tasks = [
        DrawableTask(f"session.{user}.{task}", f"user{user}", "candidate" if user % 2 else "stable", selected)
        for user in range(users)
        for task in range(10)
        for selected in [bool(user % 2) or task < 3]
    ]
    uniform = draw_tasks(tasks, 20, "a", selecting=False)
    both = draw_tasks(tasks, 40, "a", selecting=True)
    chosen = {candidate.id: candidate.arm for candidate in tasks if candidate.id in both.keys() - uniform.keys()}
    assert list(both)[: len(uniform)] == list(uniform)
    counted = Counter(chosen.values())
    assert abs(counted["candidate"] - counted["stable"]) <= 4  # of ten each, some were drawn uniformly before
    # Without arms the selected half would follow the candidate, which has 100 of 130 selected tasks.
    assert counted["candidate"] <= 10


_TASKS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([None, "stable", "candidate"]), st.booleans()), max_size=30
)


@given(_TASKS, st.integers(3, 40), st.booleans(), st.randoms())
def test_a_seed_draws_the_same_tasks_in_whatever_order_they_are_read(
    given_tasks: list[tuple[int, str | None, bool]], count: int, selecting: bool, random: object
) -> None:
    tasks = [DrawableTask(f"ask.{n:03}", str(user), arm, fits) for n, (user, arm, fits) in enumerate(given_tasks)]
    drawn = draw_tasks(tasks, count, "seed", selecting=selecting)
    shuffled = list(tasks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert list(draw_tasks(shuffled, count, "seed", selecting=selecting).items()) == list(drawn.items())
    assert len(drawn) <= count
    assert drawn.keys() <= {task.id for task in tasks}
    assert all(0 < probability <= 1 for probability in drawn.values())
    assert bool(drawn) == bool(tasks)


def test_a_user_is_in_one_split_and_a_fifth_of_them_in_each_held_out_one() -> None:
    users = [f"{number:064x}" for number in range(2_000)]
    splits = Counter(map(split_of, users))
    assert splits["test"] == pytest.approx(400, abs=80)
    assert splits["validation"] == pytest.approx(400, abs=80)
    assert [split_of(user) for user in users[:4]] == [
        "validation",
        "train",
        "test",
        "train",
    ]  # stays so in every version
