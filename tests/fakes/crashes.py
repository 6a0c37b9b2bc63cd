"""A process that dies at a chosen statement, as the database sees it: nothing more of that transaction arrives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine


class Died(BaseException):
    """The process is no more; not an Exception, so that nobody handles it."""


class Crashes:
    """Over one engine, whose statements and commits it counts."""

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
        """Die within the block once so many statements and commits have been sent; None: never."""
        self._left = statements
        try:
            yield
        finally:
            self._left = None
