"""first tables

Revision: 0001
Revises:
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0001"
down_revision: str | Sequence[str] | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("request", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("model_project", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("base_model", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("iterations_total", sa.Integer(), nullable=False),
        sa.Column("next_iteration", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("phase_iteration", sa.Integer(), nullable=True),
        sa.Column("phase_done", sa.Integer(), nullable=True),
        sa.Column("phase_total", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("best_step", sa.Integer(), nullable=True),
        sa.Column("best_success", sa.Double(), nullable=True),
        sa.Column("rollouts", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("summary", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "status IN ('cancelled', 'completed', 'failed', 'queued', 'running')", name=op.f("ck_run_status")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
    )
    op.create_index("ix_run_status_id", "run", ["status", "id"], unique=False)
    op.create_index(
        "uq_run_live_model",
        "run",
        ["backend", "model_project", "model_name"],
        unique=True,
        postgresql_where=sa.text("status IN ('queued', 'running')"),
    )
    op.create_table(
        "checkpoint",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("success", sa.Double(), nullable=True),
        sa.Column("is_best", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_checkpoint_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step", name=op.f("pk_checkpoint")),
    )
    op.create_table(
        "evaluation",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("scenarios", sa.Integer(), nullable=False),
        sa.Column("success", sa.Double(), nullable=False),
        sa.Column("mean_reward", sa.Double(), nullable=False),
        sa.Column("malformed", sa.Double(), nullable=False),
        sa.Column("turns", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_evaluation_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "iteration", "split", "mode", "step", name=op.f("pk_evaluation")),
    )
    op.create_table(
        "iteration",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("best_step", sa.Integer(), nullable=False),
        sa.Column("reward_mean", sa.Double(), nullable=True),
        sa.Column("reward_median", sa.Double(), nullable=True),
        sa.Column("reward_min", sa.Double(), nullable=True),
        sa.Column("reward_max", sa.Double(), nullable=True),
        sa.Column("reward_count", sa.Integer(), nullable=False),
        sa.Column("success", sa.Double(), nullable=True),
        sa.Column("malformed", sa.Double(), nullable=True),
        sa.Column("failed_rollouts", sa.Integer(), nullable=False),
        sa.Column("skipped_groups", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("train_metrics", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("timing", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_iteration_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "iteration", name=op.f("pk_iteration")),
    )
    op.create_table(
        "trajectory",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("scenario_id", sa.Text(), nullable=False),
        sa.Column("scenario", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("messages", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("tools", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("outcome", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("score_explanation", sa.Text(), nullable=True),
        sa.Column("score_parts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("reward_parts", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.Column("success", sa.Boolean(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_trajectory_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_trajectory")),
    )
    op.create_index("ix_trajectory_run_id_iteration_seq", "trajectory", ["run_id", "iteration", "seq"], unique=False)
    op.create_index(
        "ix_trajectory_run_id_scenario_id_seq", "trajectory", ["run_id", "scenario_id", "seq"], unique=False
    )
    op.create_index("ix_trajectory_run_id_seq", "trajectory", ["run_id", "seq"], unique=False)
    op.create_index("ix_trajectory_run_id_split_seq", "trajectory", ["run_id", "split", "seq"], unique=False)
    op.create_table(
        "webhook_delivery",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('delivered', 'failed', 'pending')", name=op.f("ck_webhook_delivery_state")),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_webhook_delivery_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_delivery")),
    )
    op.create_index(
        "ix_webhook_delivery_due",
        "webhook_delivery",
        ["next_attempt_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_index("ix_webhook_delivery_run_id_state", "webhook_delivery", ["run_id", "state"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_webhook_delivery_run_id_state", table_name="webhook_delivery")
    op.drop_index(
        "ix_webhook_delivery_due", table_name="webhook_delivery", postgresql_where=sa.text("state = 'pending'")
    )
    op.drop_table("webhook_delivery")
    op.drop_index("ix_trajectory_run_id_split_seq", table_name="trajectory")
    op.drop_index("ix_trajectory_run_id_seq", table_name="trajectory")
    op.drop_index("ix_trajectory_run_id_scenario_id_seq", table_name="trajectory")
    op.drop_index("ix_trajectory_run_id_iteration_seq", table_name="trajectory")
    op.drop_table("trajectory")
    op.drop_table("iteration")
    op.drop_table("evaluation")
    op.drop_table("checkpoint")
    op.drop_index("uq_run_live_model", table_name="run", postgresql_where=sa.text("status IN ('queued', 'running')"))
    op.drop_index("ix_run_status_id", table_name="run")
    op.drop_table("run")
