"""Concurrent tasks that can fail: none is left running, and one error is raised."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from learnloop_service.environment.plugins import PluginFault
from learnloop_service.training.backends.base import BackendUnavailable
from learnloop_service.training.budget import BudgetReached

T = TypeVar("T")


async def all_of(*works: Coroutine[Any, Any, T]) -> list[T]:
    """Run coroutines concurrently and return their results. If some fail, the others are awaited before the most
    informative error is raised, so that none is left running and no started work is lost."""
    outcomes = await asyncio.gather(*works, return_exceptions=True)
    with first_of_several():
        if errors := [outcome for outcome in outcomes if isinstance(outcome, Exception)]:
            raise ExceptionGroup("several concurrent tasks failed", errors)
    results = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


@contextmanager
def first_of_several(*before: type[Exception]) -> Iterator[None]:
    """Raise only the most informative error of a task group: the first of a kind in `before`, else the first of a kind
    that rollouts raise on purpose, else the first."""
    try:
        yield
    except ExceptionGroup as group:
        matching: ExceptionGroup[Exception] | None
        for kind in (*before, PluginFault, BackendUnavailable, BudgetReached, Exception):
            if (matching := group.subgroup(kind)) is not None:
                raise _first(matching) from group


def _first(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
