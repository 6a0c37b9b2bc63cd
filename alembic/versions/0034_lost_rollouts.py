"""Why rollouts failed; the attempt of a session is the fencing token of its task.

Revision: 0034
Revises: 0033
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0034"
down_revision: str | Sequence[str] | None = "0033"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("trajectory", sa.Column("failure", sa.Text(), nullable=True))
    op.add_column("iteration", sa.Column("lost_rollouts", postgresql.JSONB(), nullable=False, server_default="{}"))
    op.drop_column("agent_task", "claims")


def downgrade() -> None:
    op.add_column("agent_task", sa.Column("claims", sa.Integer(), nullable=False, server_default="0"))
    op.alter_column("agent_task", "claims", server_default=None)
    op.drop_column("iteration", "lost_rollouts")
    op.drop_column("trajectory", "failure")
