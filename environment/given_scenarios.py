"""Scenarios given as lists of objects in a request or an upload."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

from learnloop_service.environment.base import Json, Scenario, Split
from learnloop_service.environment.scenario_order import splits_of

SPLITS: tuple[Split, ...] = get_args(Split)


def read_scenarios(
    rows: Json, what: str, most: int, seed: str, read: Callable[[Json, int], Scenario]
) -> list[Scenario]:
    """Return the scenarios of the rows; `read` converts one row and gets its number. Raises ValueError for an invalid
    list or a repeated id."""
    check_rows(rows, what, most)
    scenarios = _with_splits([read(row, number) for number, row in enumerate(rows)], rows, seed)
    if len({scenario.id for scenario in scenarios}) < len(scenarios):
        raise ValueError("two scenarios have the same id")
    return scenarios


def check_rows(rows: Json, what: str, most: int) -> None:
    """Raise ValueError unless the rows are a list long enough for every split and no longer than `most`."""
    if not isinstance(rows, list) or not len(SPLITS) <= len(rows) <= most:
        raise ValueError(f"scenarios must be a list of {len(SPLITS)} to {most} {what}")


def check_keys(row: Json, where: str, keys: Sequence[str]) -> None:
    """Raise ValueError unless the row is an object with no other keys."""
    if not isinstance(row, dict) or (unknown := sorted(set(row) - set(keys))):
        wrong = f"has no {', '.join(unknown)}" if isinstance(row, dict) else "is not an object"
        raise ValueError(f"{where} {wrong}; it takes: {', '.join(keys)}")


def check_apart(
    scenarios: Sequence[Scenario], key: Callable[[Scenario], str], same: str, error: type[ValueError] = ValueError
) -> None:
    """Raise an error if an id occurs twice, or if a key occurs in two splits. `same` says what scenarios with one key
    have in common, with `{}` for the number and split of the other."""
    ids, keys = dict[str, int](), dict[str, int]()
    for position, scenario in enumerate(scenarios):
        if (first := ids.setdefault(scenario.id, position)) != position:
            raise error(f"scenario number {position} has the id {scenario.id!r} of number {first}")
        other = scenarios[first := keys.setdefault(key(scenario), position)]
        if other.split != scenario.split:
            raise error(
                f"scenario number {position} ({scenario.split}) {same.format(f'number {first} ({other.split})')}"
            )


def split_of(row: dict[str, Json], where: str) -> Split:
    """Return the split that the row names, `train` by default. Raises ValueError."""
    split: Split = row.get("split", "train")
    if split not in SPLITS:
        raise ValueError(f"{where} has the split {split!r}; there are: {', '.join(SPLITS)}")
    return split


def _with_splits(scenarios: Sequence[Scenario], rows: Sequence[dict[str, Json]], seed: str) -> list[Scenario]:
    """Return the scenarios with their splits. If the rows name none, each held-out split gets a fifth of them, at least
    one, and never the first. Raises ValueError if only some rows name a split."""
    if any("split" in row for row in rows):
        missing = set(SPLITS) - {scenario.split for scenario in scenarios}
        if missing or not all("split" in row for row in rows):
            raise ValueError(f"either no scenario names its split, or each does and all three occur: {SPLITS}")
        return list(scenarios)
    splits = splits_of(len(scenarios), seed)
    return [replace(scenario, split=split) for scenario, split in zip(scenarios, splits, strict=True)]
