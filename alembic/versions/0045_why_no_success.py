"""Why a rollout is not a success.

Revision: 0045
Revises: 0044
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0045"
down_revision: str | Sequence[str] | None = "0044"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("trajectory", sa.Column("why_no_success", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("trajectory", "why_no_success")
