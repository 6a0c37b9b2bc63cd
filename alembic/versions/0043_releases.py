"""Releases: a candidate that earns the traffic of a promoted name, and users of requests and feedback.

Revision: 0043
Revises: 0042
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0043"
down_revision: str | Sequence[str] | None = "0042"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_ARMS = "arm IN ('candidate', 'stable')"
_LIVE = "state IN ('held', 'running', 'trial')"
_STATES = "state IN ('held', 'overtaken', 'promoted', 'rolled_back', 'running', 'trial')"
_NOW = sa.text("now()")
_CLOCK = sa.text("clock_timestamp()")
_ASKED = ("trajectory", "agent_session")
"""Tables of what users asked."""


def _time(name: str, *, default: sa.TextClause | None = None) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=default, nullable=default is None)


def _release_id(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["release_id"], ["release.id"], name=op.f(f"fk_{table}_release_id"), ondelete="CASCADE"
    )


def upgrade() -> None:
    op.create_table(
        "release",
        sa.Column("id", sa.String(length=26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("promotion_id", sa.BigInteger(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("rules", JSONB(), nullable=False),
        sa.Column("baseline", JSONB(), nullable=False),
        sa.Column("evaluation_id", sa.String(length=26), nullable=True),
        sa.Column("evidence", JSONB(), nullable=True),
        sa.Column("looks", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("event_seq", sa.BigInteger(), server_default="0", nullable=False),
        _time("created_at", default=_NOW),
        _time("started_at"),
        _time("stage_since"),
        _time("looked_at"),
        _time("ended_at"),
        sa.CheckConstraint(_STATES, name=op.f("ck_release_state")),
        sa.ForeignKeyConstraint(["promotion_id"], ["promotion.id"], name=op.f("fk_release_promotion_id")),
        sa.ForeignKeyConstraint(
            ["evaluation_id"], ["evaluation_job.id"], name=op.f("fk_release_evaluation_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_release")),
    )
    op.create_index(
        "uq_release_project_name_live", "release", ["project", "name"], unique=True, postgresql_where=sa.text(_LIVE)
    )
    op.create_index("ix_release_project_id", "release", ["project", "id"])
    op.create_index("ix_release_evaluation_id", "release", ["evaluation_id"])
    op.create_index("ix_release_promotion_id", "release", ["promotion_id"])
    op.create_table(
        "release_unit",
        sa.Column("release_id", sa.String(length=26), nullable=False),
        sa.Column("unit", sa.String(length=64), nullable=False),
        sa.Column("arm", sa.Text(), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("forecast", sa.Double(), nullable=True),
        sa.Column("stage", sa.Integer(), nullable=False),
        _time("exposed_at", default=_CLOCK),
        _time("closed_at"),
        sa.Column("outcome", sa.Double(), nullable=True),
        sa.CheckConstraint(_ARMS, name=op.f("ck_release_unit_arm")),
        _release_id("release_unit"),
        sa.PrimaryKeyConstraint("release_id", "unit", name=op.f("pk_release_unit")),
    )
    op.create_index(
        "ix_release_unit_open",
        "release_unit",
        ["release_id", "exposed_at"],
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_table(
        "release_observation",
        sa.Column("release_id", sa.String(length=26), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("unit", sa.String(length=64), nullable=False),
        sa.Column("arm", sa.Text(), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("values", JSONB(), nullable=False),
        sa.Column("look", sa.Integer(), nullable=True),
        sa.Column("late_look", sa.Integer(), nullable=True),
        _time("observed_at", default=_CLOCK),
        sa.CheckConstraint(_ARMS, name=op.f("ck_release_observation_arm")),
        _release_id("release_observation"),
        sa.PrimaryKeyConstraint("release_id", "stage", "unit", name=op.f("pk_release_observation")),
    )
    op.create_index("ix_release_observation_observed_at", "release_observation", ["release_id", "observed_at"])
    for name, new in (
        ("ix_release_observation_new", "look IS NULL"),
        ("ix_release_observation_new_late", "late_look IS NULL AND values ? 'thumbs_down_1h'"),
    ):
        op.create_index(name, "release_observation", ["release_id"], postgresql_where=sa.text(new))
    op.create_index(
        "ix_release_observation_first_hour",
        "release_observation",
        ["release_id", "observed_at"],
        postgresql_where=sa.text("NOT values ? 'thumbs_down_1h'"),
    )
    op.create_table(
        "release_event",
        sa.Column("release_id", sa.String(length=26), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("data", JSONB(), nullable=False),
        _time("occurred_at", default=_CLOCK),
        _release_id("release_event"),
        sa.PrimaryKeyConstraint("release_id", "seq", name=op.f("pk_release_event")),
    )
    for table in _ASKED:
        op.add_column(table, sa.Column("user_hash", sa.String(length=64), nullable=True))
        op.add_column(table, sa.Column("release_id", sa.String(length=26), nullable=True))
        op.add_column(table, sa.Column("arm", sa.Text(), nullable=True))
        op.add_column(table, sa.Column("probability", sa.Double(), nullable=True))
        op.add_column(table, sa.Column("may_train", sa.Boolean(), server_default="false", nullable=False))
        op.create_foreign_key(
            op.f(f"fk_{table}_release_id"), table, "release", ["release_id"], ["id"], ondelete="SET NULL"
        )
        for column in ("user_hash", "release_id"):
            is_set = sa.text(f"{column} IS NOT NULL")
            op.create_index(f"ix_{table}_{column}", table, [column], postgresql_where=is_set)
    op.add_column("feedback", sa.Column("user_hash", sa.String(length=64), nullable=True))
    op.add_column("feedback", sa.Column("asked_as", sa.Text(), nullable=True))
    op.add_column("feedback", sa.Column("withdraws", sa.Text(), nullable=True))
    op.add_column("feedback", sa.Column("outcome_name", sa.Text(), nullable=True))
    op.add_column("feedback", sa.Column("value", sa.Double(), nullable=True))
    op.drop_constraint(op.f("ck_feedback_subject"), "feedback", type_="check")
    op.create_check_constraint(
        op.f("ck_feedback_subject"), "feedback", "num_nonnulls(trajectory_id, session_id, user_hash) = 1"
    )
    op.create_index(
        "ix_feedback_user_hash", "feedback", ["user_hash"], postgresql_where=sa.text("user_hash IS NOT NULL")
    )
    op.create_index(
        "ix_feedback_withdraws",
        "feedback",
        ["project", "withdraws"],
        postgresql_where=sa.text("withdraws IS NOT NULL"),
    )
    op.add_column("webhook_delivery", sa.Column("release_id", sa.String(length=26), nullable=True))
    op.create_foreign_key(
        op.f("fk_webhook_delivery_release_id"),
        "webhook_delivery",
        "release",
        ["release_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index(
        "ix_webhook_delivery_release_id",
        "webhook_delivery",
        ["release_id"],
        postgresql_where=sa.text("release_id IS NOT NULL"),
    )
    op.drop_constraint(op.f("ck_webhook_delivery_subject"), "webhook_delivery", type_="check")
    op.create_check_constraint(
        op.f("ck_webhook_delivery_subject"),
        "webhook_delivery",
        "num_nonnulls(run_id, evaluation_id, release_id) = 1",
    )


def downgrade() -> None:
    op.execute("DELETE FROM webhook_delivery WHERE release_id IS NOT NULL")
    op.drop_constraint(op.f("ck_webhook_delivery_subject"), "webhook_delivery", type_="check")
    op.drop_column("webhook_delivery", "release_id")
    op.create_check_constraint(
        op.f("ck_webhook_delivery_subject"), "webhook_delivery", "num_nonnulls(run_id, evaluation_id) = 1"
    )
    op.execute("DELETE FROM feedback WHERE user_hash IS NOT NULL")
    op.drop_constraint(op.f("ck_feedback_subject"), "feedback", type_="check")
    op.drop_index("ix_feedback_withdraws", "feedback")
    for column in ("user_hash", "asked_as", "withdraws", "outcome_name", "value"):
        op.drop_column("feedback", column)
    op.create_check_constraint(
        op.f("ck_feedback_subject"), "feedback", "(trajectory_id IS NULL) <> (session_id IS NULL)"
    )
    for table in _ASKED:
        for column in ("user_hash", "release_id", "arm", "probability", "may_train"):
            op.drop_column(table, column)
    for table in ("release_event", "release_observation", "release_unit", "release"):
        op.drop_table(table)
