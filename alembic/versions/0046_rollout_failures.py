"""How many rollouts of an iteration failed, and why the first one did.

Revision: 0046
Revises: 0045
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0046"
down_revision: str | Sequence[str] | None = "0045"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("run", sa.Column("rollout_failures", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("run", "rollout_failures")
