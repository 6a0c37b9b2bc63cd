"""Feedback on sessions of agents, and what people say with their feedback.

Revision: 0027
Revises: 0026
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0027"
down_revision: str | Sequence[str] | None = "0026"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_COLUMNS = ("session_id", "against_session_id")


def upgrade() -> None:
    for column in _COLUMNS:
        op.add_column("feedback", sa.Column(column, sa.String(26)))
        op.create_foreign_key(
            op.f(f"fk_feedback_{column}"), "feedback", "agent_session", [column], ["id"], ondelete="CASCADE"
        )
        op.create_index(f"ix_feedback_{column}", "feedback", [column])
    op.add_column("feedback", sa.Column("comment", sa.Text()))
    op.alter_column("feedback", "trajectory_id", nullable=True)
    op.create_check_constraint(
        op.f("ck_feedback_subject"), "feedback", "(trajectory_id IS NULL) <> (session_id IS NULL)"
    )


def downgrade() -> None:
    op.execute("DELETE FROM feedback WHERE trajectory_id IS NULL")
    op.drop_constraint(op.f("ck_feedback_subject"), "feedback")
    op.alter_column("feedback", "trajectory_id", nullable=False)
    op.drop_column("feedback", "comment")
    for column in _COLUMNS:
        op.drop_column("feedback", column)
