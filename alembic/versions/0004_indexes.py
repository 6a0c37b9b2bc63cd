"""Indexes for a project's runs, and for the deliveries that wait for their turn.

Revision: 0004
Revises: 0003
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0004"
down_revision: str | Sequence[str] | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_index("ix_run_model_project_id", "run", ["model_project", "id"])
    op.create_index(
        "ix_webhook_delivery_turn",
        "webhook_delivery",
        ["run_id", "endpoint_id", "event_seq", "seq"],
        postgresql_where=sa.text("state = 'pending'"),
    )


def downgrade() -> None:
    op.drop_index("ix_webhook_delivery_turn", table_name="webhook_delivery")
    op.drop_index("ix_run_model_project_id", table_name="run")
