"""Tasks that wait for a team's own agent to claim them, and sessions of the rollouts of evaluations.

Revision: 0026
Revises: 0025
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0026"
down_revision: str | Sequence[str] | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "agent_task",
        sa.Column("session_id", sa.String(26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(26)),
        sa.Column("task", JSONB(), nullable=False),
        sa.Column("timeout_s", sa.Double(), nullable=False),
        sa.Column("claims", sa.Integer(), nullable=False),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("lease_until", _TIME),
        sa.Column("deadline", _TIME),
        sa.Column("created_at", _TIME, server_default=sa.func.now(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"], ["agent_session.id"], name=op.f("fk_agent_task_session_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_agent_task")),
    )
    op.add_column("agent_session", sa.Column("evaluation_id", sa.String(26)))
    op.create_foreign_key(
        op.f("fk_agent_session_evaluation_id"),
        "agent_session",
        "evaluation_job",
        ["evaluation_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index(
        "uq_agent_session_evaluation_id_entry",
        "agent_session",
        ["evaluation_id", "entry"],
        unique=True,
        postgresql_where=sa.text("evaluation_id IS NOT NULL"),
    )
    op.create_index("ix_agent_task_project_run_id", "agent_task", ["project", "run_id"])


def downgrade() -> None:
    op.drop_table("agent_task")
    op.drop_index("uq_agent_session_evaluation_id_entry", "agent_session")
    op.drop_constraint(op.f("fk_agent_session_evaluation_id"), "agent_session")
    op.drop_column("agent_session", "evaluation_id")
