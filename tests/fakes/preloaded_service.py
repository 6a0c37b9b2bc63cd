"""Imports what the processes of a service import: its own, an engine, and ART, which a service imports while it waits
for the other two."""

import learnloop_service.app.cli.main
import learnloop_service.app.main  # noqa: F401
from tests.fakes import preloaded_art, preloaded_engine  # noqa: F401
