"""Demonstrations among the named data sets.

Revision: 0028
Revises: 0027
"""

from collections.abc import Sequence

from alembic import op

revision: str = "0028"
down_revision: str | Sequence[str] | None = "0027"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_CHECK = "ck_dataset_version_kind"


def upgrade() -> None:
    _allow("'inbox', 'scenarios', 'demonstrations'")


def downgrade() -> None:
    op.execute("DELETE FROM dataset_version WHERE kind = 'demonstrations'")
    op.execute("DELETE FROM document WHERE kind = 'demonstrations'")
    _allow("'inbox', 'scenarios'")


def _allow(kinds: str) -> None:
    op.drop_constraint(op.f(_CHECK), "dataset_version")
    op.create_check_constraint(op.f(_CHECK), "dataset_version", f"kind IN ({kinds})")
