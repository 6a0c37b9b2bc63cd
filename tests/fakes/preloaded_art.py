"""Imports ART, as the process of its local backend does."""

from learnloop_service.training.backends.art_import import import_art
from tests.fakes import art_patch

import_art()
art_patch.undo()
