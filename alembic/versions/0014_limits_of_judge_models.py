"""How often judge models are asked, over all workers.

Revision: 0014
Revises: 0013
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0014"
down_revision: str | Sequence[str] | None = "0013"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "judge_rate",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("requests_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tokens_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("model", name=op.f("pk_judge_rate")),
    )


def downgrade() -> None:
    op.drop_table("judge_rate")
