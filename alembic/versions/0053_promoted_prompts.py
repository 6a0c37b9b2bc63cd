"""The prompt that a checkpoint is promoted, released or sampled in a session with.

Revision: 0053
Revises: 0052
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0053"
down_revision: str | Sequence[str] | None = "0052"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_TABLES = ("promotion", "release", "agent_session")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("prompt_sha256", sa.String(64), nullable=True))
        op.add_column(table, sa.Column("prompt_name", sa.Text(), nullable=True))
        op.add_column(table, sa.Column("prompt_version", sa.Integer(), nullable=True))
    op.add_column("promotion", sa.Column("prompt_missed_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("promotion", "prompt_missed_at")
    for table in _TABLES:
        op.drop_column(table, "prompt_version")
        op.drop_column(table, "prompt_name")
        op.drop_column(table, "prompt_sha256")
