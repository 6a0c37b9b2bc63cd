"""Failed deliveries are counted for metrics.

Revision: 0024
Revises: 0023
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0024"
down_revision: str | Sequence[str] | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index(
        "ix_webhook_delivery_failed", "webhook_delivery", ["project"], postgresql_where=sa.text("state = 'failed'")
    )


def downgrade() -> None:
    op.drop_index("ix_webhook_delivery_failed", table_name="webhook_delivery")
