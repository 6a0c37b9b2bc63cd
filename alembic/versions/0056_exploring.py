"""The share of a promoted name's sessions that are sampled at temperature 1, and the coin of each session.

Revision: 0056
Revises: 0055
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0056"
down_revision: str | Sequence[str] | None = "0055"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("promotion", sa.Column("explore", JSONB(), nullable=True))
    op.add_column("agent_session", sa.Column("explored", sa.Boolean(), nullable=True))
    op.add_column("agent_session", sa.Column("explore_share", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("agent_session", "explore_share")
    op.drop_column("agent_session", "explored")
    op.drop_column("promotion", "explore")
