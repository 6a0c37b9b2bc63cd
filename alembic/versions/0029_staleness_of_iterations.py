"""From which policy an iteration's rollouts were sampled.

Revision: 0029
Revises: 0028
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0029"
down_revision: str | Sequence[str] | None = "0028"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("iteration", sa.Column("sampled_step", sa.Integer(), nullable=True))
    op.add_column("iteration", sa.Column("staleness", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("iteration", "staleness")
    op.drop_column("iteration", "sampled_step")
