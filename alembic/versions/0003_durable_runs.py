"""Durable runs: leases, journal, events, keys, idempotency, ledger, webhook endpoints.

Revision: 0003
Revises: 0002
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0003"
down_revision: str | Sequence[str] | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


_LIVE = "uq_run_live_model"
_MODEL = ["backend", "model_project", "model_name"]


def _statuses(*paused: str) -> None:
    """Allow these statuses beside the permanent ones, and let the live ones hold their model."""
    op.drop_constraint(op.f("ck_run_status"), "run", type_="check")
    statuses = ", ".join(sorted(f"'{s}'" for s in ("cancelled", "completed", "failed", "queued", "running", *paused)))
    op.create_check_constraint(op.f("ck_run_status"), "run", f"status IN ({statuses})")
    op.drop_index(_LIVE, table_name="run")
    live = ", ".join(sorted(f"'{s}'" for s in ("queued", "running", *paused)))
    op.create_index(_LIVE, "run", _MODEL, unique=True, postgresql_where=sa.text(f"status IN ({live})"))


def upgrade() -> None:
    _statuses("paused")
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("sha256", name=op.f("uq_api_key_sha256")),
    )
    op.create_table(
        "idempotency_key",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("project", "key", name=op.f("pk_idempotency_key")),
    )
    op.create_table(
        "event",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("data", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "occurred_at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_event_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "seq", name=op.f("pk_event")),
    )
    op.create_table(
        "journal",
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("kept_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_journal_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "iteration", "name", name=op.f("pk_journal")),
    )
    op.create_table(
        "ledger_entry",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("run_id", sa.String(length=26), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("usd", sa.Double(), nullable=True),
        sa.Column("wasted", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_ledger_entry_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_entry")),
    )
    op.create_index("ix_ledger_entry_run_id_iteration", "ledger_entry", ["run_id", "iteration"], unique=False)
    op.create_table(
        "webhook_endpoint",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("project", sa.Text(), nullable=True),
        sa.Column("run_id", sa.String(length=26), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_secret", sa.LargeBinary(), nullable=True),
        sa.Column("previous_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_webhook_endpoint_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoint")),
    )
    op.create_index("ix_webhook_endpoint_project", "webhook_endpoint", ["project"], unique=False)
    op.create_index("ix_webhook_endpoint_run_id", "webhook_endpoint", ["run_id"], unique=False)
    op.create_table(
        "webhook_attempt",
        sa.Column("delivery_id", sa.String(length=26), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["delivery_id"], ["webhook_delivery.id"], name=op.f("fk_webhook_attempt_delivery_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("delivery_id", "number", name=op.f("pk_webhook_attempt")),
    )
    op.add_column("run", sa.Column("epoch", sa.Integer(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column("run", sa.Column("attempts", sa.Integer(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("engine", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("wait_reason", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("pause_requested", sa.Boolean(), server_default="false", nullable=False))
    op.add_column("run", sa.Column("parent_run_id", sa.String(length=26), nullable=True))
    op.add_column("run", sa.Column("parent_step", sa.Integer(), nullable=True))
    op.add_column("run", sa.Column("event_seq", sa.BigInteger(), server_default="0", nullable=False))
    op.create_index(
        "ix_run_lease", "run", ["lease_until"], unique=False, postgresql_where=sa.text("status = 'running'")
    )
    op.create_foreign_key(op.f("fk_run_parent_run_id"), "run", "run", ["parent_run_id"], ["id"], ondelete="SET NULL")
    op.add_column("trajectory", sa.Column("project", sa.Text(), nullable=True))
    op.add_column("webhook_delivery", sa.Column("endpoint_id", sa.String(length=26), nullable=True))
    op.add_column("webhook_delivery", sa.Column("event_seq", sa.BigInteger(), nullable=True))
    op.add_column("webhook_delivery", sa.Column("event_type", sa.Text(), nullable=True))
    op.alter_column("webhook_delivery", "iteration", existing_type=sa.INTEGER(), nullable=True)
    op.create_index(op.f("ix_webhook_delivery_endpoint_id"), "webhook_delivery", ["endpoint_id"], unique=False)
    op.create_foreign_key(
        op.f("fk_webhook_delivery_endpoint_id"),
        "webhook_delivery",
        "webhook_endpoint",
        ["endpoint_id"],
        ["id"],
        ondelete="SET NULL",
    )


def downgrade() -> None:
    op.execute("UPDATE run SET status = 'failed', error = 'was paused' WHERE status = 'paused'")
    op.execute("DELETE FROM webhook_delivery WHERE iteration IS NULL")
    _statuses()
    op.drop_constraint(op.f("fk_webhook_delivery_endpoint_id"), "webhook_delivery", type_="foreignkey")
    op.drop_index(op.f("ix_webhook_delivery_endpoint_id"), table_name="webhook_delivery")
    op.alter_column("webhook_delivery", "iteration", existing_type=sa.INTEGER(), nullable=False)
    op.drop_column("webhook_delivery", "event_type")
    op.drop_column("webhook_delivery", "event_seq")
    op.drop_column("webhook_delivery", "endpoint_id")
    op.drop_column("trajectory", "project")
    op.drop_constraint(op.f("fk_run_parent_run_id"), "run", type_="foreignkey")
    op.drop_index("ix_run_lease", table_name="run", postgresql_where=sa.text("status = 'running'"))
    op.drop_column("run", "event_seq")
    op.drop_column("run", "parent_step")
    op.drop_column("run", "parent_run_id")
    op.drop_column("run", "pause_requested")
    op.drop_column("run", "wait_reason")
    op.drop_column("run", "engine")
    op.drop_column("run", "attempts")
    op.drop_column("run", "lease_until")
    op.drop_column("run", "epoch")
    op.drop_table("webhook_attempt")
    op.drop_index("ix_webhook_endpoint_run_id", table_name="webhook_endpoint")
    op.drop_index("ix_webhook_endpoint_project", table_name="webhook_endpoint")
    op.drop_table("webhook_endpoint")
    op.drop_index("ix_ledger_entry_run_id_iteration", table_name="ledger_entry")
    op.drop_table("ledger_entry")
    op.drop_table("journal")
    op.drop_table("event")
    op.drop_table("idempotency_key")
    op.drop_table("api_key")
