"""What the owner of a run says about it, and what runs with the same settings have in common.

Revision: 0042
Revises: 0041
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0042"
down_revision: str | Sequence[str] | None = "0041"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_SETTINGS_HASH = (
    "md5(((request - 'seed'::text) #- '{model,name}'::text[])::text"
    " || coalesce(parent_run_id, '') || coalesce('@' || parent_step::text, ''))"
)


def upgrade() -> None:
    op.add_column("run", sa.Column("name", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("tags", JSONB(), server_default="[]", nullable=False))
    op.add_column("run", sa.Column("notes", sa.Text(), server_default="", nullable=False))
    op.add_column("run", sa.Column("starred", sa.Boolean(), server_default="false", nullable=False))
    op.add_column(
        "run", sa.Column("settings_hash", sa.Text(), sa.Computed(_SETTINGS_HASH, persisted=True), nullable=False)
    )
    op.create_index("ix_run_settings_hash_id", "run", ["settings_hash", "id"])


def downgrade() -> None:
    op.drop_index("ix_run_settings_hash_id", table_name="run")
    for name in ("settings_hash", "starred", "notes", "tags", "name"):
        op.drop_column("run", name)
