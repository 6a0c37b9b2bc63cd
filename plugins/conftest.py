"""Fixtures of the service, for the integration tests of plug-ins."""

from tests.integration.app.conftest import api, client, database, ended_runs, model_engine, stage
from tests.integration.cli.conftest import learnloop

__all__ = ["api", "client", "database", "ended_runs", "learnloop", "model_engine", "stage"]
