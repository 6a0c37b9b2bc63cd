"""What backends call checkpoints.

Revision: 0007
Revises: 0006
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | Sequence[str] | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("checkpoint", sa.Column("model", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoint", "model")
