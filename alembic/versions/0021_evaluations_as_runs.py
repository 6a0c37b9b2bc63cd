"""Evaluations have a budget, events that are delivered, and details that are deleted by age.

Revision: 0021
Revises: 0020
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0021"
down_revision: str | Sequence[str] | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_JSON = postgresql.JSONB(astext_type=sa.Text())
_BEFORE = "status IN ('cancelled', 'completed', 'failed', 'queued', 'running')"
_STATES = "status IN ('cancelled', 'completed', 'failed', 'paused', 'queued', 'running')"
_STATUS = "ck_evaluation_job_status"


def upgrade() -> None:
    op.drop_constraint(op.f(_STATUS), "evaluation_job", type_="check")
    op.create_check_constraint(op.f(_STATUS), "evaluation_job", _STATES)
    op.add_column("evaluation_job", sa.Column("driven_s", sa.Float(), server_default="0", nullable=False))
    op.add_column("evaluation_job", sa.Column("lost", _JSON, server_default="{}", nullable=False))
    op.add_column("evaluation_job", sa.Column("shortage", _JSON, nullable=True))
    op.add_column("evaluation_job", sa.Column("event_seq", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("evaluation_job", sa.Column("pruned", _JSON, server_default="{}", nullable=False))
    op.create_table(
        "evaluation_event",
        sa.Column("evaluation_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("data", _JSON, nullable=False),
        sa.Column(
            "occurred_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluation_job.id"],
            name=op.f("fk_evaluation_event_evaluation_id_evaluation_job"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("evaluation_id", "seq", name=op.f("pk_evaluation_event")),
    )
    op.alter_column("webhook_delivery", "run_id", nullable=True)
    op.add_column("webhook_delivery", sa.Column("evaluation_id", sa.String(length=26), nullable=True))
    op.create_foreign_key(
        op.f("fk_webhook_delivery_evaluation_id_evaluation_job"),
        "webhook_delivery",
        "evaluation_job",
        ["evaluation_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_check_constraint(
        op.f("ck_webhook_delivery_subject"), "webhook_delivery", "num_nonnulls(run_id, evaluation_id) = 1"
    )
    op.create_index(
        "ix_webhook_delivery_evaluation_id",
        "webhook_delivery",
        ["evaluation_id"],
        postgresql_where=sa.text("evaluation_id IS NOT NULL"),
    )


def downgrade() -> None:
    op.execute("DELETE FROM webhook_delivery WHERE evaluation_id IS NOT NULL")
    op.drop_index("ix_webhook_delivery_evaluation_id", table_name="webhook_delivery")
    op.drop_constraint(op.f("ck_webhook_delivery_subject"), "webhook_delivery", type_="check")
    op.drop_constraint(op.f("fk_webhook_delivery_evaluation_id_evaluation_job"), "webhook_delivery", type_="foreignkey")
    op.drop_column("webhook_delivery", "evaluation_id")
    op.alter_column("webhook_delivery", "run_id", nullable=False)
    op.drop_table("evaluation_event")
    for column in ("pruned", "event_seq", "shortage", "lost", "driven_s"):
        op.drop_column("evaluation_job", column)
    op.execute("UPDATE evaluation_job SET status = 'failed', error = wait_reason WHERE status = 'paused'")
    op.drop_constraint(op.f(_STATUS), "evaluation_job", type_="check")
    op.create_check_constraint(op.f(_STATUS), "evaluation_job", _BEFORE)
