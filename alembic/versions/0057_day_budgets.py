"""What jobs use of the budgets for a day, which budget stopped a run, and who started what.

Revision: 0057
Revises: 0056
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0057"
down_revision: str | Sequence[str] | None = "0056"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_COLUMNS = [(table, "started_by") for table in ("run", "evaluation_job", "release", "improvement", "schedule")]
_COLUMNS += [("run", "shortage")]
_PAUSED_BY_BUDGET = """UPDATE run SET shortage = data FROM event WHERE status = 'paused' AND event.run_id = run.id
AND event.seq = run.event_seq - 1 AND event.type = 'budget.reached'"""
_TABLE = """CREATE TABLE day_use (day date, job_id varchar(26), project text NOT NULL, key_id text,
usd float8 DEFAULT 0 NOT NULL, tokens bigint DEFAULT 0 NOT NULL, minutes float8 DEFAULT 0 NOT NULL,
reserved_usd float8 DEFAULT 0 NOT NULL, reserved_tokens bigint DEFAULT 0 NOT NULL,
CONSTRAINT pk_day_use PRIMARY KEY (day, job_id))"""


def upgrade() -> None:
    for table, name in _COLUMNS:
        op.add_column(table, sa.Column(name, JSONB(), nullable=True))
    op.execute(_PAUSED_BY_BUDGET)
    op.execute(_TABLE)
    op.create_index("ix_day_use_job_id", "day_use", ["job_id"])


def downgrade() -> None:
    op.drop_table("day_use")
    for table, name in _COLUMNS:
        op.drop_column(table, name)
