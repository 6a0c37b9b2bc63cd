"""The order of claims: projects take turns, so that one with many queued rows delays another one by at most one row."""

from typing import Any

from sqlalchemy import SQLColumnExpression, Subquery, func, select
from sqlalchemy.orm import aliased

from learnloop_service.app.db.tables.claimable import Claimable
from learnloop_service.app.domain.run_state import RunStatus


def turns(table: type[Claimable]) -> Subquery:
    """Count the `running` rows of each `project` with queued rows, and find its last claim (`served`)."""
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
    """Return the order of claims, for rows that are outer-joined with the turn of their project.

    Work of lost workers comes first, then the project with the fewest running rows. Ties go to the project whose last
    claim is the longest ago. Within a project, the oldest row comes first.
    """
    return [
        table.status == RunStatus.QUEUED,
        turn.c.running,
        turn.c.served.nulls_first(),
        table.created_at,
        table.id,
    ]
