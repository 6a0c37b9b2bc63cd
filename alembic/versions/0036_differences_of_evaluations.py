"""How far an evaluation is from the run's baseline, paired by scenario.

Revision: 0036
Revises: 0033
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0036"
down_revision: str | Sequence[str] | None = "0033"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("evaluation", sa.Column("difference", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("evaluation", "difference")
