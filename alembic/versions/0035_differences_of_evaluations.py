"""How far an evaluation is from the run's baseline, paired by scenario.

Revision: 0035
Revises: 0034
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0035"
down_revision: str | Sequence[str] | None = "0034"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("evaluation", sa.Column("difference", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("evaluation", "difference")
