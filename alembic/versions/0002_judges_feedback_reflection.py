"""What judging costs, feedback on emails, node scores and showcases, graphs and scenarios that requests bring.

Revision: 0002
Revises: 0001
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0002"
down_revision: str | Sequence[str] | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "document",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_document")),
    )
    op.create_table(
        "verdict",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_verdict")),
    )
    op.create_table(
        "judge_call",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("cost_usd", sa.Double(), nullable=True),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("cached", sa.Boolean(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_judge_call_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_judge_call")),
    )
    op.create_index("ix_judge_call_run_id_iteration", "judge_call", ["run_id", "iteration"], unique=False)
    op.create_table(
        "reflection",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("state", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_reflection_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "iteration", name=op.f("pk_reflection")),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("against_id", sa.Text(), nullable=True),
        sa.Column("run_id", sa.String(length=26), nullable=True),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["against_id"], ["trajectory.id"], name=op.f("fk_feedback_against_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_feedback_run_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["trajectory_id"], ["trajectory.id"], name=op.f("fk_feedback_trajectory_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
        sa.UniqueConstraint("project", "event_id", name=op.f("uq_feedback_project_event_id")),
    )
    op.create_index("ix_feedback_against_id", "feedback", ["against_id"], unique=False)
    op.create_index("ix_feedback_run_id_id", "feedback", ["run_id", "id"], unique=False)
    op.create_index("ix_feedback_trajectory_id", "feedback", ["trajectory_id"], unique=False)
    op.add_column("run", sa.Column("judge_prompt_tokens", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("judge_completion_tokens", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("judge_cost_usd", sa.Double(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("results_error", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("run", "results_error")
    op.drop_column("run", "judge_cost_usd")
    op.drop_column("run", "judge_completion_tokens")
    op.drop_column("run", "judge_prompt_tokens")
    op.drop_index("ix_feedback_trajectory_id", table_name="feedback")
    op.drop_index("ix_feedback_run_id_id", table_name="feedback")
    op.drop_index("ix_feedback_against_id", table_name="feedback")
    op.drop_table("feedback")
    op.drop_table("reflection")
    op.drop_index("ix_judge_call_run_id_iteration", table_name="judge_call")
    op.drop_table("judge_call")
    op.drop_table("verdict")
    op.drop_table("document")
