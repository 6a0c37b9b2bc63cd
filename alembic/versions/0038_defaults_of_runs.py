"""Defaults of a run that follow its base model, and the learning rate that suits the base.

Revision: 0038
Revises: 0037
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0038"
down_revision: str | Sequence[str] | None = "0037"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("run", sa.Column("defaults", JSONB(), server_default="{}", nullable=False))
    op.add_column("run", sa.Column("usual_learning_rate", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("run", "usual_learning_rate")
    op.drop_column("run", "defaults")
