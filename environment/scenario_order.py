"""Scenarios from a fixed set: whole passes over it, each in another order."""

from collections.abc import Iterator, Sequence
from random import Random

from environment.base import Scenario


def draw(pool: Sequence[Scenario], count: int, seed: int, start: int) -> Iterator[Scenario]:
    """Numbers `start` to `start + count` of endless passes over the pool, which must not be empty."""
    while count > 0:
        number, place = divmod(start, len(pool))
        part = Random(f"pass:{seed}:{number}").sample(pool, len(pool))[place : place + count]
        yield from part
        start, count = start + len(part), count - len(part)
