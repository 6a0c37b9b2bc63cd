"""Sessions of agents that own their loop.

Revision: 0025
Revises: 0024
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0025"
down_revision: str | Sequence[str] | None = "0024"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "agent_session",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("asked_model", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer()),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("model_run_id", sa.String(26)),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("sampling", JSONB()),
        sa.Column("max_calls", sa.Integer()),
        sa.Column("max_tokens", sa.Integer()),
        sa.Column("explicit_restart", sa.Boolean(), nullable=False),
        sa.Column("metadata", JSONB(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("uses", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("opening_digest", sa.String(64)),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("outcome", JSONB()),
        sa.Column("run_id", sa.String(26)),
        sa.Column("iteration", sa.Integer()),
        sa.Column("entry", sa.Text()),
        sa.Column("opened_at", _TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME),
        sa.CheckConstraint("state IN ('ended', 'expired', 'open')", name=op.f("ck_agent_session_state")),
        sa.ForeignKeyConstraint(
            ["model_run_id"], ["run.id"], name=op.f("fk_agent_session_model_run_id"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_agent_session_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agent_session")),
    )
    op.create_index("ix_agent_session_model_run_id", "agent_session", ["model_run_id"])
    op.create_index("ix_agent_session_project_id", "agent_session", ["project", "id"])
    op.create_index(
        "ix_agent_session_open", "agent_session", ["project", "expires_at"], postgresql_where=sa.text("state = 'open'")
    )
    op.create_index(
        "uq_agent_session_run_id_iteration_entry",
        "agent_session",
        ["run_id", "iteration", "entry"],
        unique=True,
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_table(
        "agent_session_key",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("session_id", sa.String(26), nullable=False),
        sa.Column("replaced_at", _TIME),
        _of_session("agent_session_key"),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_agent_session_key")),
    )
    op.create_index("ix_agent_session_key_session_id", "agent_session_key", ["session_id"])
    op.create_table(
        "session_call",
        sa.Column("session_id", sa.String(26), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("occurrence", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("answer", sa.LargeBinary()),
        sa.Column("model", sa.Text()),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("holder", sa.Text()),
        sa.Column("held_until", _TIME),
        sa.Column("begun_at", _TIME, server_default=sa.func.now(), nullable=False),
        sa.Column("answered_at", _TIME),
        _of_session("session_call"),
        sa.PrimaryKeyConstraint("session_id", "number", name=op.f("pk_session_call")),
    )
    op.create_index(
        "uq_session_call_session_id_digest_occurrence",
        "session_call",
        ["session_id", "digest", "occurrence"],
        unique=True,
    )
    op.create_index(
        "ix_session_call_holder", "session_call", ["holder"], postgresql_where=sa.text("holder IS NOT NULL")
    )
    op.create_table(
        "session_use",
        sa.Column("session_id", sa.String(26), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("occurrence", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("begun_at", _TIME, server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column("delivered_at", _TIME),
        _of_session("session_use"),
        sa.PrimaryKeyConstraint("session_id", "attempt", "number", name=op.f("pk_session_use")),
    )
    op.create_index(
        "uq_session_use_session_id_attempt_digest_occurrence",
        "session_use",
        ["session_id", "attempt", "digest", "occurrence"],
        unique=True,
    )


def _of_session(table: str) -> sa.ForeignKeyConstraint:
    name = op.f(f"fk_{table}_session_id")
    return sa.ForeignKeyConstraint(["session_id"], ["agent_session.id"], name=name, ondelete="CASCADE")


def downgrade() -> None:
    for table in ("session_use", "session_call", "agent_session_key", "agent_session"):
        op.drop_table(table)
