"""A checksum for each entry of the journal; those written before have none.

Revision: 0009
Revises: 0008
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0009"
down_revision: str | Sequence[str] | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("journal", sa.Column("checksum", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("journal", "checksum")
