"""Simulates a process that dies at a chosen statement: the database receives nothing more of its transaction."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine


class Died(BaseException):
    """The process has died. Not an Exception, so that nothing handles it."""


class Crashes:
    """Counts the statements and commits of an engine, and raises Died at a chosen one."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._left: int | None = None
        event.listen(engine.sync_engine, "before_cursor_execute", self._count)
        event.listen(engine.sync_engine, "commit", self._count)

    def _count(self, *_: Any) -> None:
        if self._left is None:
            return
        if self._left == 0:
            raise Died
        self._left -= 1

    @contextmanager
    def after(self, statements: int | None) -> Iterator[None]:
        """Die within the block after that many statements and commits, or with None never."""
        self._left = statements
        try:
            yield
        finally:
            self._left = None
