"""Draws tasks from what users asked: half of them uniformly over users, the others from those that a filter selects.

Selecting by reward or feedback prefers users who ask much and users who are badly served, so what is learned from
selected tasks alone serves few users. Each task therefore keeps the probability with which it was included.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import TypeVar

from learnloop_service.environment.base import Split

T = TypeVar("T")
_HELD_OUT = 0.2
"""Share of the users in each held-out split."""


@dataclass(frozen=True, slots=True)
class DrawableTask:
    """A task that can be drawn."""

    id: str
    """Id of its scenario: `session.ID` or `ask.ID`."""
    user: str
    """Hash of the user who asked."""
    arm: str | None
    """The arm of the release that was live; None without one."""
    selected: bool
    """Whether the filter selects it."""


def draw_tasks(pool: Sequence[DrawableTask], count: int, seed: str, *, selecting: bool) -> dict[str, float]:
    """Draw up to `count` different tasks and return their probabilities of inclusion, in (0, 1], in drawn order.

    Uniformly means: `count` times, or half as often if a filter selects, draw a user, each equally likely, and then one
    of the user's tasks; a task that is drawn again changes nothing. The other half is drawn without replacement from
    the selected tasks. There each arm of a release gets its share of the pool's users, because otherwise the arm that
    serves its users worse would decide what is learned. The same seed and pool draw the same tasks.
    """
    ordered = sorted(pool, key=lambda task: task.id)
    random, by_user = Random(seed), _grouped(ordered, lambda task: task.user)
    uniform = math.ceil(count / 2) if selecting else count
    users = sorted(by_user)
    drawn = [random.choice(by_user[random.choice(users)]) for _ in range(uniform)] if users else []
    quotas, by_arm = dict[str, float](), _grouped([task for task in ordered if task.selected], _arm)
    if selecting:
        of_arm = {arm: len({task.user for task in tasks}) for arm, tasks in _grouped(ordered, _arm).items()}
        shares = {arm: of_arm[arm] for arm in sorted(by_arm)}
        for arm, quota in _apportioned(count - uniform, shares).items():
            drawn += random.sample(by_arm[arm], min(quota, len(by_arm[arm])))
            quotas[arm] = quota / len(by_arm[arm])
    return {
        task.id: 1
        - (1 - 1 / (len(users) * len(by_user[task.user]))) ** uniform
        * (1 - (min(1.0, quotas.get(_arm(task), 0.0)) if task.selected else 0.0))
        for task in drawn
    }


def draw_of_users(users: Mapping[str, str], per_user: int, seed: str) -> set[str]:
    """Draw at most `per_user` ids of each user, given the user of each id. A user's draw depends on no other user."""
    by_user = _grouped(sorted(users), users.__getitem__)
    return {id for user, ids in by_user.items() for id in Random(f"{seed}:{user}").sample(ids, min(per_user, len(ids)))}


def split_of(user: str) -> Split:
    """Return the split of all tasks of a user, which is the same in every draw."""
    fraction = int.from_bytes(sha256(f"split:{user}".encode()).digest()[:8]) / 2**64
    return "test" if fraction < _HELD_OUT else "validation" if fraction < 2 * _HELD_OUT else "train"


def _arm(task: DrawableTask) -> str:
    return task.arm or ""


def _grouped(tasks: Sequence[T], key: Callable[[T], str]) -> Mapping[str, list[T]]:
    groups = defaultdict[str, list[T]](list)
    for task in tasks:
        groups[key(task)].append(task)
    return groups


def _apportioned(places: int, shares: Mapping[str, int]) -> dict[str, int]:
    """Divide the places in proportion to the shares, the remainder by largest fraction."""
    total = sum(shares.values())
    exact = {arm: places * share / total for arm, share in shares.items()}
    whole = {arm: math.floor(quota) for arm, quota in exact.items()}
    for arm in sorted(exact, key=lambda arm: whole[arm] - exact[arm])[: places - sum(whole.values())]:
        whole[arm] += 1
    return whole
