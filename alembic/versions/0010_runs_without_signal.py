"""Iterations that taught nothing, how many of them came in a row, and what was foreseen when the run was accepted.

Revision: 0010
Revises: 0009
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0010"
down_revision: str | Sequence[str] | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("iteration", sa.Column("no_signal", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("no_signal", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("no_signal_iterations", sa.Integer(), server_default="0", nullable=False))
    op.add_column("run", sa.Column("warnings", postgresql.JSONB(), server_default="[]", nullable=False))


def downgrade() -> None:
    op.drop_column("run", "warnings")
    op.drop_column("run", "no_signal_iterations")
    op.drop_column("run", "no_signal")
    op.drop_column("iteration", "no_signal")
