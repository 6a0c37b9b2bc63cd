"""How the error of an improvement is divided among the tests of its candidates.

Half is for prompts, whose number is not known beforehand: test number j gets half / (j (j + 1)), which adds up to at
most half for any number of prompts. The other half is for the tests that are planned from the beginning, in equal
parts. So a hundred refused prompts cost training nothing, and by the union bound the probability that any candidate is
accepted that is not better is at most the whole error.
"""

from collections.abc import Iterable
from typing import Literal

ERROR = 0.05
"""Bound on the probability that an improvement ever accepts a candidate that is not better."""


def error_shares(
    tests: Iterable[Literal["prompt", "planned"] | None], planned: int, error: float = ERROR
) -> list[float | None]:
    """Return the share of each candidate, in the order in which they are tested.

    A candidate that never came to its test, such as one that failed its screening, is None and has no share. `planned`
    is the number of tests that the improvement planned when it began. Planned tests beyond that number were added by
    continuing, and share with the prompts.
    """
    shares: list[float | None] = []
    planned_tests = open_ended = 0
    for test in tests:
        if test is None:
            shares.append(None)
        elif test == "planned" and planned_tests < planned:
            planned_tests += 1
            shares.append(error / 2 / planned)
        else:
            open_ended += 1
            shares.append(error / 2 / (open_ended * (open_ended + 1)))
    return shares
