"""Inboxes and sets of scenarios in versions, and the files of uploaded inboxes.

Revision: 0015
Revises: 0014
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0015"
down_revision: str | Sequence[str] | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "dataset_version",
        sa.Column("id", sa.String(26), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("environment", sa.Text(), nullable=False),
        sa.Column("inbox_sha256", sa.String(64), nullable=True),
        sa.Column("origin", postgresql.JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("kind IN ('inbox', 'scenarios')", name=op.f("ck_dataset_version_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset_version")),
        sa.UniqueConstraint(
            "project", "kind", "name", "version", name=op.f("uq_dataset_version_project_kind_name_version")
        ),
    )
    op.create_index("ix_dataset_version_sha256", "dataset_version", ["sha256"])
    op.create_table(
        "inbox_part",
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", "number", name=op.f("pk_inbox_part")),
    )


def downgrade() -> None:
    op.drop_table("inbox_part")
    op.drop_index("ix_dataset_version_sha256", table_name="dataset_version")
    op.drop_table("dataset_version")
