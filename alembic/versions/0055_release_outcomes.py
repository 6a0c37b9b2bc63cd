"""Releases decide by outcomes, and confirm it.

Revision: 0055
Revises: 0054
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0055"
down_revision: str | Sequence[str] | None = "0054"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_BEFORE = "state IN ('held', 'overtaken', 'promoted', 'rolled_back', 'running', 'trial')"
_STATES = "state IN ('confirmed', 'held', 'overtaken', 'promoted', 'rolled_back', 'running', 'trial')"


def upgrade() -> None:
    op.add_column("release", sa.Column("confirming_id", sa.BigInteger(), nullable=True))
    op.create_foreign_key(op.f("fk_release_confirming_id"), "release", "promotion", ["confirming_id"], ["id"])
    op.create_index(
        "ix_release_confirming_id",
        "release",
        ["confirming_id"],
        postgresql_where=sa.text("confirming_id IS NOT NULL"),
    )
    op.drop_constraint(op.f("ck_release_state"), "release", type_="check")
    op.create_check_constraint(op.f("ck_release_state"), "release", _STATES)
    op.add_column("release_unit", sa.Column("reported", sa.Boolean(), nullable=True))
    op.add_column("release_unit", sa.Column("second_outcome", sa.Double(), nullable=True))
    op.add_column("release_unit", sa.Column("look", sa.Integer(), nullable=True))
    op.create_index("ix_release_unit_new", "release_unit", ["release_id"], postgresql_where=sa.text("look IS NULL"))


def downgrade() -> None:
    op.drop_index("ix_release_unit_new", "release_unit")
    for column in ("look", "second_outcome", "reported"):
        op.drop_column("release_unit", column)
    op.execute("UPDATE release SET state = 'promoted' WHERE state = 'confirmed'")
    op.drop_constraint(op.f("ck_release_state"), "release", type_="check")
    op.create_check_constraint(op.f("ck_release_state"), "release", _BEFORE)
    op.drop_column("release", "confirming_id")
