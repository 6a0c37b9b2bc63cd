"""Documents from before they had projects: those of runs become their projects', the others stay everybody's."""

import json

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from learnloop_service.app.db.database import make_engine, parse_url
from learnloop_service.app.db.migration import scripts

_RUN = """
INSERT INTO run (id, status, request, environment, judge, backend, model_project, model_name, base_model,
    iterations_total, cancel_requested, next_iteration, rollouts, prompt_tokens, completion_tokens)
VALUES (CAST(:project AS text), 'completed', CAST(:request AS jsonb), 'sales_email', 'a', 'a',
    CAST(:project AS text), CAST(:project AS text), 'a', 1, false, 0, 0, 0, 0)
"""
_DOCUMENT = "INSERT INTO document (sha256, kind, content) VALUES (:sha256, :kind, CAST('[]' AS jsonb))"


def _migrate(connection: Connection) -> set[tuple[str, str]]:
    config = Config()
    config.set_main_option("script_location", str(scripts()))
    config.attributes["connection"] = connection
    command.upgrade(config, "0004")
    for sha256, kind in (("g", "graph"), ("s", "scenarios"), ("unused", "graph")):
        connection.execute(text(_DOCUMENT), {"sha256": sha256, "kind": kind})
    own_documents = {"graph": {"sha256": "g", "nodes": 1}, "scenarios": {"sha256": "s", "count": 1}}
    configs = {"mail": own_documents, "sales": {"graph": {"sha256": "g"}}, "other": {"graph": "test.0.17"}, "none": {}}
    for project, project_config in configs.items():
        request = json.dumps({"environment": {"config": project_config}})
        connection.execute(text(_RUN), {"project": project, "request": request})
    command.upgrade(config, "0005")
    owners = connection.execute(text("SELECT project, sha256 FROM document")).all()
    command.downgrade(config, "0004")
    remaining = connection.execute(text("SELECT sha256 FROM document ORDER BY sha256")).scalars().all()
    assert remaining == ["g", "s", "unused"]
    return {(project, sha256) for project, sha256 in owners}


async def test_documents_become_those_of_the_projects_that_use_them(empty_database_url: str) -> None:
    engine = make_engine(parse_url(empty_database_url))
    async with engine.begin() as connection:
        owners = await connection.run_sync(_migrate)
    await engine.dispose()
    assert owners == {("mail", "g"), ("mail", "s"), ("sales", "g"), ("*", "unused")}
