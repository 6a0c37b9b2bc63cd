"""Prompts as documents, and the prompt that a rollout was made with.

Revision: 0050
Revises: 0049
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0050"
down_revision: str | Sequence[str] | None = "0049"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_CHECK = "ck_dataset_version_kind"
_BEFORE = "'inbox', 'scenarios', 'demonstrations'"


def upgrade() -> None:
    _set_kinds(f"{_BEFORE}, 'prompt'")
    op.add_column("trajectory", sa.Column("prompt_sha256", sa.String(64), nullable=True))
    op.add_column("trajectory", sa.Column("undelivered_parts", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("trajectory", "undelivered_parts")
    op.drop_column("trajectory", "prompt_sha256")
    op.execute("DELETE FROM dataset_version WHERE kind = 'prompt'")
    op.execute("DELETE FROM document WHERE kind = 'prompt'")
    _set_kinds(_BEFORE)


def _set_kinds(kinds: str) -> None:
    op.drop_constraint(op.f(_CHECK), "dataset_version", type_="check")
    op.create_check_constraint(op.f(_CHECK), "dataset_version", f"kind IN ({kinds})")
