"""Whose turn it is: projects are served in rotation, so that one with many queued rows delays another one's by one."""

from typing import Any

from sqlalchemy import SQLColumnExpression, Subquery, func, select
from sqlalchemy.orm import aliased

from app.db.tables.claimable import Claimable
from app.domain.run_state import RunStatus


def turns(table: type[Claimable]) -> Subquery:
    """Each `project` with queued rows: how many of its rows are `running`, and when it was last `served`."""
    other: Any = aliased(table)
    running = select(func.count()).where(other.project == table.project, other.status == RunStatus.RUNNING)
    served = select(func.max(other.claimed_at)).where(other.project == table.project)
    return (
        select(
            table.project.label("project"),
            running.scalar_subquery().label("running"),
            served.scalar_subquery().label("served"),
        )
        .where(table.status == RunStatus.QUEUED)
        .group_by(table.project)
        .subquery("turn")
    )


def in_turn(table: type[Claimable], turn: Subquery) -> list[SQLColumnExpression[Any]]:
    """The order of claims, where each row is joined with the turn of its project, if that has one.

    Work whose worker is gone comes first. Then the project with the fewest rows in progress; among equals the one whose
    last claim is the longest ago; and of a project its oldest row.
    """
    return [
        table.status == RunStatus.QUEUED,
        turn.c.running,
        turn.c.served.nulls_first(),
        table.created_at,
        table.id,
    ]
