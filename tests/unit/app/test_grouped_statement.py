"""Statements over the rows of several callers."""

import asyncio
from typing import Any

from learnloop_service.app.db.direct_connection import GroupedStatement


class Broken:
    """A connection on which nothing can be executed, for a reason that was not foreseen."""

    async def execute(self, statement: str, values: Any) -> None:
        raise ValueError("not foreseen")


async def test_no_caller_waits_for_ever_for_a_statement_that_failed() -> None:
    statement = GroupedStatement(Broken(), "SELECT", ("ids",))  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        assert await statement.row("a") is None
        assert await statement.row("b") is None
