"""Whether a run repeats to the bit, as the backend reports it.

Revision: 0008
Revises: 0007
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | Sequence[str] | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("run", sa.Column("reproducible", sa.Boolean(), nullable=True))
    op.add_column("run", sa.Column("reproducible_reason", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("run", "reproducible_reason")
    op.drop_column("run", "reproducible")
