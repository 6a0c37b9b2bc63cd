"""Evaluations that are asked for by themselves.

Revision: 0016
Revises: 0015
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0016"
down_revision: str | Sequence[str] | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_JSON = postgresql.JSONB(astext_type=sa.Text())
_TIME = sa.DateTime(timezone=True)
_STATES = "status IN ('cancelled', 'completed', 'failed', 'queued', 'running')"


def upgrade() -> None:
    op.create_table(
        "evaluation_job",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("request", _JSON, nullable=False),
        sa.Column("engine", sa.Text(), nullable=True),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_until", _TIME, nullable=True),
        sa.Column("claims", sa.Integer(), server_default="0", nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("wait_reason", sa.Text(), nullable=True),
        sa.Column("done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("judge", _JSON, server_default="{}", nullable=False),
        sa.Column("report", _JSON, nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", _TIME, nullable=True),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.CheckConstraint(_STATES, name=op.f("ck_evaluation_job_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluation_job")),
    )
    op.create_index("ix_evaluation_job_project_id", "evaluation_job", ["project", "id"])
    op.create_index(
        "ix_evaluation_job_open",
        "evaluation_job",
        ["created_at"],
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.add_column("trajectory", sa.Column("evaluation_id", sa.String(length=26), nullable=True))
    op.add_column("trajectory", sa.Column("slot", sa.Text(), nullable=True))
    op.create_foreign_key(
        op.f("fk_trajectory_evaluation_id_evaluation_job"),
        "trajectory",
        "evaluation_job",
        ["evaluation_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index(
        "uq_trajectory_evaluation_id_slot",
        "trajectory",
        ["evaluation_id", "slot"],
        unique=True,
        postgresql_where=sa.text("evaluation_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.execute("DELETE FROM trajectory WHERE evaluation_id IS NOT NULL")
    op.drop_index("uq_trajectory_evaluation_id_slot", table_name="trajectory")
    op.drop_constraint(op.f("fk_trajectory_evaluation_id_evaluation_job"), "trajectory", type_="foreignkey")
    op.drop_column("trajectory", "slot")
    op.drop_column("trajectory", "evaluation_id")
    op.drop_table("evaluation_job")
