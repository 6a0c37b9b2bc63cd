"""Further conversations of rollouts, of agents that own their loop.

Revision: 0022
Revises: 0021
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0022"
down_revision: str | Sequence[str] | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    column = sa.Column("additional_histories", postgresql.JSONB(), server_default="[]", nullable=False)
    op.add_column("trajectory", column)


def downgrade() -> None:
    op.drop_column("trajectory", "additional_histories")
