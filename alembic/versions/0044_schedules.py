"""Schedules, their due times, and the users whose requests stored scenarios were made from.

Revision: 0044
Revises: 0043
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0044"
down_revision: str | Sequence[str] | None = "0043"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_NOW = sa.text("now()")


def _to(column: str, table: str, ondelete: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{table}.id"], name=op.f(f"fk_schedule_run_{column}"), ondelete=ondelete
    )


def upgrade() -> None:
    op.create_table(
        "schedule",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("run", JSONB(), nullable=False),
        sa.Column("promoted_name", sa.Text(), nullable=False),
        sa.Column("then", sa.Text(), nullable=False),
        sa.Column("least_new_tasks", sa.Integer(), nullable=False),
        sa.Column("window_days", sa.Double(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("next_due_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.CheckConstraint("\"then\" IN ('nothing', 'release', 'trial')", name=op.f("ck_schedule_then")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule")),
        sa.UniqueConstraint("project", "name", name=op.f("uq_schedule_project_name")),
    )
    op.create_index("ix_schedule_next_due_at", "schedule", ["next_due_at"])
    op.create_table(
        "schedule_run",
        sa.Column("schedule_id", sa.String(length=26), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("run_id", sa.String(length=26), nullable=True),
        sa.Column("started_from", sa.Text(), nullable=True),
        sa.Column("tasks", sa.Integer(), nullable=True),
        sa.Column("users", sa.Integer(), nullable=True),
        sa.Column("evaluation_id", sa.String(length=26), nullable=True),
        sa.Column("trial_alpha", sa.Double(), nullable=True),
        sa.Column("release_id", sa.String(length=26), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=_NOW, nullable=False),
        sa.CheckConstraint("state IN ('done', 'running', 'skipped')", name=op.f("ck_schedule_run_state")),
        _to("schedule_id", "schedule", "CASCADE"),
        _to("run_id", "run", "SET NULL"),
        _to("evaluation_id", "evaluation_job", "SET NULL"),
        _to("release_id", "release", "SET NULL"),
        sa.PrimaryKeyConstraint("schedule_id", "due_at", name=op.f("pk_schedule_run")),
    )
    for column in ("run_id", "evaluation_id", "release_id"):
        op.create_index(f"ix_schedule_run_{column}", "schedule_run", [column])
    op.create_table(
        "user_scenario",
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("scenario_id", sa.Text(), nullable=False),
        sa.Column("user_hash", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["project", "sha256"],
            ["document.project", "document.sha256"],
            name=op.f("fk_user_scenario_project_sha256"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project", "sha256", "scenario_id", name=op.f("pk_user_scenario")),
    )
    op.create_index("ix_user_scenario_user_hash", "user_scenario", ["user_hash"])


def downgrade() -> None:
    for table in ("user_scenario", "schedule_run", "schedule"):
        op.drop_table(table)
