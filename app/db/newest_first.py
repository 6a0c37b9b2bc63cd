"""Pages of rows, newest first."""

from typing import Any, TypeVarTuple

from sqlalchemy import Select
from sqlalchemy.orm import InstrumentedAttribute

Columns = TypeVarTuple("Columns")


def newest_first(
    query: Select[*Columns],
    key: InstrumentedAttribute[Any],
    before: object,
    limit: int,
    *only: tuple[InstrumentedAttribute[Any], object],
) -> Select[*Columns]:
    """Return the query of at most `limit` rows by descending `key`, which begin after the row whose key is `before`
    (None: with the newest). `only` gives the values of columns, and of `started_by` any part; None stands for any."""
    if before is not None:
        query = query.where(key < before)
    for column, value in only:
        if value is not None:
            is_starter = column.key == "started_by"
            query = query.where(column.class_.is_started_by(value) if is_starter else column == value)
    return query.order_by(key.desc()).limit(limit)
