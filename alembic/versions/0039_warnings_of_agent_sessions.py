"""Warnings about what of an agent's requests had no effect.

Revision: 0039
Revises: 0038
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0039"
down_revision: str | Sequence[str] | None = "0038"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("agent_session", sa.Column("warnings", JSONB(), server_default="[]", nullable=False))


def downgrade() -> None:
    op.drop_column("agent_session", "warnings")
