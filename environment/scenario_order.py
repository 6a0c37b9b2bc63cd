"""The order of a fixed set of scenarios, in passes that are each shuffled, and its division into splits."""

from collections.abc import Iterator, Sequence
from random import Random

from learnloop_service.environment.base import Scenario, Split


def draw(pool: Sequence[Scenario], count: int, seed: int, start: int) -> Iterator[Scenario]:
    """Yield numbers `start` to `start + count` of endless passes over the pool, which must not be empty."""
    while count > 0:
        number, offset = divmod(start, len(pool))
        part = Random(f"pass:{seed}:{number}").sample(pool, len(pool))[offset : offset + count]
        yield from part
        start, count = start + len(part), count - len(part)


def different(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Return the scenarios without repetitions of an id, in order."""
    by_id: dict[str, Scenario] = {}
    for scenario in scenarios:
        by_id.setdefault(scenario.id, scenario)
    return list(by_id.values())


def splits_of(count: int, salt: str) -> list[Split]:
    """Return the splits of a set that names none: a fifth, at least one, for each held-out split; the first is
    `train`."""
    held_out = max(1, count // 5)
    positions = Random(salt).sample(range(1, count), 2 * held_out)
    splits: dict[int, Split] = dict.fromkeys(positions[:held_out], "validation")
    splits |= dict.fromkeys(positions[held_out:], "test")
    return [splits.get(position, "train") for position in range(count)]
