"""What an hour of the machine cost when a run ran.

Revision: 0048
Revises: 0047
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0048"
down_revision: str | Sequence[str] | None = "0047"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("run", sa.Column("machine_price_per_hour", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("run", "machine_price_per_hour")
