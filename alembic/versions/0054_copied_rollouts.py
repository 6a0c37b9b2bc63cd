"""The rollout of an earlier evaluation that one is a copy of.

Revision: 0054
Revises: 0053
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0054"
down_revision: str | Sequence[str] | None = "0053"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("trajectory", sa.Column("copied_from", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("trajectory", "copied_from")
