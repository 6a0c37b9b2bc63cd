"""Runs no longer take over the baselines of earlier ones.

Revision: 0033
Revises: 0032
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0033"
down_revision: str | Sequence[str] | None = "0032"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # A fork takes its parent's request, and a field that requests no longer have is refused.
    op.execute("UPDATE run SET request = request - 'reuse_baseline' WHERE request ? 'reuse_baseline'")
    op.drop_index("ix_run_model_project_baseline_key", table_name="run")
    op.drop_column("run", "baseline_run_id")
    op.drop_column("run", "baseline_key")


def downgrade() -> None:
    op.add_column("run", sa.Column("baseline_key", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("baseline_run_id", sa.String(26), nullable=True))
    op.create_index(
        "ix_run_model_project_baseline_key",
        "run",
        ["model_project", "baseline_key"],
        postgresql_where=sa.text("baseline_key IS NOT NULL"),
    )
