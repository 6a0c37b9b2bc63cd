"""Names that were taken away, and which questions were asked of a promoted name.

Revision: 0019
Revises: 0018
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0019"
down_revision: str | Sequence[str] | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("promotion", sa.Column("withdrawn_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("promotion", sa.Column("withdrawn_by", sa.Text(), nullable=True))
    op.add_column("trajectory", sa.Column("asked_as", sa.Text(), nullable=True))
    op.create_index(
        "ix_trajectory_asked_as_seq",
        "trajectory",
        ["asked_as", "seq"],
        postgresql_where=sa.text("asked_as IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_trajectory_asked_as_seq", table_name="trajectory")
    op.drop_column("trajectory", "asked_as")
    op.drop_column("promotion", "withdrawn_by")
    op.drop_column("promotion", "withdrawn_at")
