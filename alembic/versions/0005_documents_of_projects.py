"""Documents belong to projects.

A document that runs refer to then belongs to the projects of these runs. The owners of the others are not known, so all
projects may use them, as before.

Revision: 0005
Revises: 0004
"""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | Sequence[str] | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

_KEY = "pk_document"


def upgrade() -> None:
    op.add_column("document", sa.Column("project", sa.Text(), server_default="*", nullable=False))
    op.drop_constraint(_KEY, "document", type_="primary")
    op.create_primary_key(_KEY, "document", ["project", "sha256"])
    op.execute(
        """
        INSERT INTO document (project, sha256, kind, content, created_at)
        SELECT used.project, document.sha256, kind, content, created_at
        FROM document JOIN (
            SELECT DISTINCT model_project AS project, sha256
            FROM run, LATERAL (VALUES
                (request #>> '{environment,config,graph,sha256}'),
                (request #>> '{environment,config,scenarios,sha256}')
            ) AS named (sha256)
        ) AS used ON used.sha256 = document.sha256
        """
    )
    op.execute(
        "DELETE FROM document WHERE project = '*' AND sha256 IN (SELECT sha256 FROM document WHERE project <> '*')"
    )


def downgrade() -> None:
    op.execute(
        "DELETE FROM document WHERE EXISTS (SELECT FROM document AS other"
        " WHERE other.sha256 = document.sha256 AND other.project < document.project)"
    )
    op.drop_constraint(_KEY, "document", type_="primary")
    op.create_primary_key(_KEY, "document", ["sha256"])
    op.drop_column("document", "project")
