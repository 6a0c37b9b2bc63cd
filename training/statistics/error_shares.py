"""How the error of an improvement is divided among the tests of its candidates.

Half is for prompts, whose number is not known beforehand: test number j gets half / (j (j + 1)), which adds up to at
most half for any number of prompts. The other half is for the tests that are planned from the beginning, in equal
parts. So a hundred refused prompts cost training nothing, and by the union bound the probability that any candidate is
accepted that is not better is at most the whole error.
"""

from collections.abc import Iterable

ERROR = 0.05
"""Bound on the probability that an improvement ever accepts a candidate that is not better."""


def error_shares(tests: Iterable[bool], planned: int, error: float = ERROR) -> list[float]:
    """Return the share of each test in order, which is true if it is one of the `planned` ones.

    Planned tests beyond that number were added by continuing, and share with the prompts.
    """
    shares: list[float] = []
    planned_tests = open_ended = 0
    for is_planned in tests:
        if is_planned and planned_tests < planned:
            planned_tests += 1
            shares.append(error / 2 / planned)
        else:
            open_ended += 1
            shares.append(error / 2 / (open_ended * (open_ended + 1)))
    return shares
