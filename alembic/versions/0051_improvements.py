"""Improvements and their candidates.

Revision: 0051
Revises: 0050
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0051"
down_revision: str | Sequence[str] | None = "0050"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_STATUSES = "'best_so_far', 'budget', 'cancelled', 'failed', 'nothing_helps', 'paused', 'reached', 'running'"
_RUNGS = "'as_it_is', 'grpo', 'imitation', 'model', 'prompt'"
_STATES = "'accepted', 'failed', 'measuring', 'proposed', 'refused', 'screening', 'skipped', 'training', 'unreachable'"
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "improvement",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("request", JSONB(), nullable=False),
        sa.Column("facts", JSONB(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), server_default="0", nullable=False),
        sa.Column("champion", sa.Integer(), server_default="0", nullable=False),
        sa.Column("job_kind", sa.Text(), nullable=True),
        sa.Column("job_id", sa.String(26), nullable=True),
        sa.Column("job_for", sa.Text(), nullable=True),
        sa.Column("pilot", JSONB(), nullable=True),
        sa.Column("final", JSONB(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("waits_until", _TIME, nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.CheckConstraint(f"status IN ({_STATUSES})", name=op.f("ck_improvement_status")),
        sa.CheckConstraint("job_kind IN ('evaluation', 'run')", name=op.f("ck_improvement_job_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_improvement")),
    )
    op.create_index("ix_improvement_project_id", "improvement", ["project", "id"])
    op.create_index("ix_improvement_status", "improvement", ["status"])
    op.create_table(
        "candidate",
        sa.Column("improvement_id", sa.String(26), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("rung", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("prompt", JSONB(), nullable=True),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("listed", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("only_by_person", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("run_id", sa.String(26), nullable=True),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("screening_id", sa.String(26), nullable=True),
        sa.Column("gate_id", sa.String(26), nullable=True),
        sa.Column("error_share", sa.Double(), nullable=True),
        sa.Column("evidence", JSONB(), nullable=True),
        sa.Column("figures", JSONB(), nullable=True),
        sa.Column("created_at", _TIME, server_default=sa.text("now()"), nullable=False),
        sa.Column("decided_at", _TIME, nullable=True),
        sa.CheckConstraint(f"rung IN ({_RUNGS})", name=op.f("ck_candidate_rung")),
        sa.CheckConstraint(f"state IN ({_STATES})", name=op.f("ck_candidate_state")),
        sa.ForeignKeyConstraint(
            ["improvement_id"],
            ["improvement.id"],
            name=op.f("fk_candidate_improvement_id_improvement"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("improvement_id", "number", name=op.f("pk_candidate")),
    )
    op.create_index("ix_candidate_run_id", "candidate", ["run_id"])


def downgrade() -> None:
    op.drop_table("candidate")
    op.drop_table("improvement")
