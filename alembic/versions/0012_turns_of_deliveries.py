"""Which deliveries have their turn, and whose they are, so that sending costs the same however many wait.

Revision: 0012
Revises: 0011
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0012"
down_revision: str | Sequence[str] | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_PENDING = sa.text("state = 'pending'")


def upgrade() -> None:
    op.add_column("webhook_delivery", sa.Column("project", sa.Text(), nullable=True))
    op.add_column("webhook_delivery", sa.Column("receiver", sa.Text(), nullable=True))
    op.add_column("webhook_delivery", sa.Column("is_next", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(
        "UPDATE webhook_delivery SET project = run.model_project, receiver = coalesce(endpoint_id, url) "
        "FROM run WHERE run.id = run_id"
    )
    op.execute(
        "UPDATE webhook_delivery SET is_next = true FROM ("
        "  SELECT DISTINCT ON (run_id, receiver) id FROM webhook_delivery WHERE state = 'pending' "
        "  ORDER BY run_id, receiver, event_seq, seq"
        ") AS first WHERE first.id = webhook_delivery.id"
    )
    op.alter_column("webhook_delivery", "project", nullable=False)
    op.alter_column("webhook_delivery", "receiver", nullable=False)
    op.drop_index("ix_webhook_delivery_due", table_name="webhook_delivery")
    op.drop_index("ix_webhook_delivery_turn", table_name="webhook_delivery")
    op.create_index(
        "ix_webhook_delivery_turn",
        "webhook_delivery",
        ["run_id", "receiver", "event_seq", "seq"],
        postgresql_where=_PENDING,
    )
    op.create_index(
        "ix_webhook_delivery_pending", "webhook_delivery", ["project", "receiver"], postgresql_where=_PENDING
    )
    op.create_index(
        "ix_webhook_delivery_next",
        "webhook_delivery",
        ["project", "receiver", "next_attempt_at"],
        postgresql_where=sa.text("state = 'pending' AND is_next"),
    )


def downgrade() -> None:
    for name in ("next", "pending", "turn"):
        op.drop_index(f"ix_webhook_delivery_{name}", table_name="webhook_delivery")
    op.create_index(
        "ix_webhook_delivery_turn",
        "webhook_delivery",
        ["run_id", "endpoint_id", "event_seq", "seq"],
        postgresql_where=_PENDING,
    )
    op.create_index("ix_webhook_delivery_due", "webhook_delivery", ["next_attempt_at"], postgresql_where=_PENDING)
    for name in ("is_next", "receiver", "project"):
        op.drop_column("webhook_delivery", name)
