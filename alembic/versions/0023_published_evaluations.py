"""Whether an evaluation was published to Weave.

Revision: 0023
Revises: 0022
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0023"
down_revision: str | Sequence[str] | None = "0022"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("evaluation_job", sa.Column("published", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.create_index(
        "ix_evaluation_job_to_publish",
        "evaluation_job",
        ["finished_at"],
        postgresql_where=sa.text("published ->> 'state' = 'due'"),
    )


def downgrade() -> None:
    op.drop_index("ix_evaluation_job_to_publish", table_name="evaluation_job")
    op.drop_column("evaluation_job", "published")
