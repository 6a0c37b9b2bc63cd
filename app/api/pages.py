"""Pages of lists: the parameters that ask for one, and the response."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Query

from learnloop_service.app.api.dependencies import NO_NUL, IdCursor, Limit, NumberCursor
from learnloop_service.app.schemas.base import Page

Source = TypeVar("Source")
Shown = TypeVar("Shown")


@dataclass(frozen=True, slots=True)
class Paging:
    """The page of a list that a request asks for."""

    cursor: str | None
    limit: int

    @property
    def fetched(self) -> int:
        """Number of rows to read for the page: one more than it shows tells whether there is a next one."""
        return self.limit + 1

    def after(self, first: int = 0) -> int:
        """Return the number after which the page begins, for lists in ascending order; `first` for the first page."""
        return first if self.cursor is None else int(self.cursor)

    @property
    def before(self) -> int | None:
        """The number before which the page begins, for lists in descending order; None for the first page."""
        return None if self.cursor is None else int(self.cursor)

    def page(
        self, rows: Sequence[Source], show: Callable[[Source], Shown], cursor: Callable[[Source], str | int]
    ) -> Page[Shown]:
        """Return the page of these rows."""
        listed = rows[: self.limit]
        next_cursor = str(cursor(listed[-1])) if len(rows) > self.limit else None
        return Page(items=[show(row) for row in listed], next_cursor=next_cursor)


async def _by_id(cursor: IdCursor = None, limit: Limit = 50) -> Paging:
    return Paging(cursor, limit)


async def _by_number(cursor: NumberCursor = None, limit: Limit = 50) -> Paging:
    return Paging(cursor, limit)


_OF_KEY = "Only what this API key started, by id or name, or an order such as `improvement:ID`. Default: all"
StartedBy = Annotated[str | None, Query(min_length=1, max_length=100, pattern=NO_NUL, description=_OF_KEY)]
ById = Annotated[Paging, Depends(_by_id)]
"""A page of a list whose cursors are ids."""
ByNumber = Annotated[Paging, Depends(_by_number)]
"""A page of a list whose cursors are numbers."""
