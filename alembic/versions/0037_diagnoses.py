"""Facts of iterations, and the causes of a run's trouble that they name.

Revision: 0037
Revises: 0036
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0037"
down_revision: str | Sequence[str] | None = "0036"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("iteration", sa.Column("facts", JSONB(), nullable=True))
    op.add_column("run", sa.Column("causes", JSONB(), server_default="[]", nullable=False))
    op.add_column("run", sa.Column("diagnosis_pause", sa.Text(), nullable=True))
    op.create_table(
        "diagnosis",
        sa.Column("run_id", sa.String(26), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("first_iteration", sa.Integer(), nullable=False),
        sa.Column("named_at_iteration", sa.Integer(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("evidence", JSONB(), nullable=False),
        sa.Column("remedy", JSONB(), nullable=False),
        sa.Column("explained_by", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name=op.f("fk_diagnosis_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "cause", name=op.f("pk_diagnosis")),
    )
    op.create_index(
        "ix_diagnosis_active", "diagnosis", ["severity", "run_id"], postgresql_where=sa.text("state = 'active'")
    )


def downgrade() -> None:
    op.drop_table("diagnosis")
    op.drop_column("run", "diagnosis_pause")
    op.drop_column("run", "causes")
    op.drop_column("iteration", "facts")
