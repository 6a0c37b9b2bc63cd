"""The archive of rollouts: token ids and exact log-probabilities stay when an iteration is saved.

Revision: 0036
Revises: 0035
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0036"
down_revision: str | Sequence[str] | None = "0035"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "rollout_record",
        sa.Column("run_id", sa.String(26), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("checksum", sa.BigInteger()),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_rollout_record_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "iteration", "name", name=op.f("pk_rollout_record")),
    )


def downgrade() -> None:
    op.drop_table("rollout_record")
