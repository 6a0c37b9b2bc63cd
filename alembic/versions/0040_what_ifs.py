"""What-ifs: evaluations whose rollouts continue a recorded one.

Revision: 0040
Revises: 0039
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0040"
down_revision: str | Sequence[str] | None = "0039"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("evaluation_job", sa.Column("trajectory_id", sa.Text(), nullable=True))
    op.create_foreign_key(
        op.f("fk_evaluation_job_trajectory_id"),
        "evaluation_job",
        "trajectory",
        ["trajectory_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index("ix_evaluation_job_trajectory_id", "evaluation_job", ["trajectory_id"])


def downgrade() -> None:
    op.drop_index("ix_evaluation_job_trajectory_id", "evaluation_job")
    op.drop_constraint(op.f("fk_evaluation_job_trajectory_id"), "evaluation_job", type_="foreignkey")
    op.drop_column("evaluation_job", "trajectory_id")
