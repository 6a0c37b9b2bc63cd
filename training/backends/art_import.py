"""Imports ART without torch, because the service does no tensor work.

`import art` imports transformers, and therefore torch, to patch a function that only local training uses. ART works
without transformers, so both are hidden during the import: a None in `sys.modules` makes an import raise ImportError.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from learnloop_service.training.import_lock import IMPORTING

_UNWANTED = ("torch", "transformers")


def import_art(module: str = "art") -> ModuleType:
    """Import ART, or a module of it, and return it. The first call takes seconds. Thread-safe."""
    with IMPORTING:
        # Otherwise litellm, which ART imports, downloads a price list.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        with _missing(*_UNWANTED):
            return import_module(module)


@contextmanager
def _missing(*names: str) -> Iterator[None]:
    """Hide modules that are not imported yet, so that importing them fails."""
    absent = dict.fromkeys(name for name in names if name not in sys.modules)
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
