"""Groups that replace those that taught nothing.

Revision: 0047
Revises: 0046
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0047"
down_revision: str | Sequence[str] | None = "0046"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("trajectory", sa.Column("inclusion", sa.Double(), nullable=True))
    op.add_column("trajectory", sa.Column("replaces", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("trajectory", "replaces")
    op.drop_column("trajectory", "inclusion")
