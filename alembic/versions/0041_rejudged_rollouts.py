"""What other judges make of stored rollouts.

Revision: 0041
Revises: 0040
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0041"
down_revision: str | Sequence[str] | None = "0040"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("evaluation_job", sa.Column("run_id", sa.String(length=26), nullable=True))
    op.create_foreign_key(
        op.f("fk_evaluation_job_run_id"), "evaluation_job", "run", ["run_id"], ["id"], ondelete="CASCADE"
    )
    op.create_index("ix_evaluation_job_run_id", "evaluation_job", ["run_id"])
    op.create_table(
        "rejudged_rollout",
        sa.Column("evaluation_id", sa.String(length=26), nullable=False),
        sa.Column("trajectory_id", sa.Text(), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("score_explanation", sa.Text(), nullable=False),
        sa.Column("score_parts", JSONB(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("reward_parts", JSONB(), nullable=False),
        sa.Column("success", sa.Boolean(), nullable=True),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["evaluation_id"],
            ["evaluation_job.id"],
            name=op.f("fk_rejudged_rollout_evaluation_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["trajectory_id"], ["trajectory.id"], name=op.f("fk_rejudged_rollout_trajectory_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("evaluation_id", "trajectory_id", "repeat", name=op.f("pk_rejudged_rollout")),
    )
    op.create_index("ix_rejudged_rollout_trajectory_id", "rejudged_rollout", ["trajectory_id"])


def downgrade() -> None:
    op.drop_table("rejudged_rollout")
    op.drop_index("ix_evaluation_job_run_id", "evaluation_job")
    op.drop_constraint(op.f("fk_evaluation_job_run_id"), "evaluation_job", type_="foreignkey")
    op.drop_column("evaluation_job", "run_id")
