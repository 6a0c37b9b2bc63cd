"""Keys that only propose prompts, for one improvement.

Revision: 0052
Revises: 0051
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0052"
down_revision: str | Sequence[str] | None = "0051"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("api_key", sa.Column("improvement_id", sa.String(26), nullable=True))
    op.create_foreign_key(
        op.f("fk_api_key_improvement_id"),
        "api_key",
        "improvement",
        ["improvement_id"],
        ["id"],
        ondelete="SET NULL",
    )


def downgrade() -> None:
    op.execute("DELETE FROM api_key WHERE improvement_id IS NOT NULL")
    op.drop_column("api_key", "improvement_id")
