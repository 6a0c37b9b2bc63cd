"""When a run or evaluation was last claimed: projects take turns.

Revision: 0032
Revises: 0031
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0032"
down_revision: str | Sequence[str] | None = "0031"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_PROJECTS = {"run": "model_project", "evaluation_job": "project"}


def upgrade() -> None:
    op.alter_column("run", "cancel_requested", server_default="false")
    for table, project in _PROJECTS.items():
        op.add_column(table, sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True))
        op.create_index(f"ix_{table}_{project}_claimed_at", table, [project, "claimed_at"])


def downgrade() -> None:
    for table, project in _PROJECTS.items():
        op.drop_index(f"ix_{table}_{project}_claimed_at", table_name=table)
        op.drop_column(table, "claimed_at")
    op.alter_column("run", "cancel_requested", server_default=None)
