"""Concurrent tasks that fail: none is left running, and one error says why."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from environment.plugins import PluginFault
from training.backends.base import BackendUnavailable
from training.budget import BudgetReached

T = TypeVar("T")


async def all_of(*works: Coroutine[Any, Any, T]) -> list[T]:
    """The results of concurrent tasks. If some fail, all are awaited before the most telling error is raised, so that
    none is left running and none loses what it has begun."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    with first_of_several():
        if errors := [each for each in outcomes if isinstance(each, Exception)]:
            raise ExceptionGroup("several concurrent tasks failed", errors)
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


@contextmanager
def first_of_several(*before: type[Exception]) -> Iterator[None]:
    """Of the errors that a task group raises let only the most telling one through: one of the kinds `before`, else one
    that rollouts raise for a reason, else the first."""
    try:
        yield
    except ExceptionGroup as group:
        found: ExceptionGroup[Exception] | None
        for kind in (*before, PluginFault, BackendUnavailable, BudgetReached, Exception):
            if (found := group.subgroup(kind)) is not None:
                raise _first(found) from group


def _first(group: ExceptionGroup[Exception]) -> Exception:
    found: Exception = group
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found
