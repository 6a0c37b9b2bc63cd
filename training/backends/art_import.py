"""Imports ART without torch: the service does no tensor work.

`import art` imports transformers, and so torch, to patch a function that only local training uses. Where transformers
is not installed ART does without, so both count as missing meanwhile: a None in `sys.modules` makes an import raise
ImportError.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from training.import_lock import IMPORTING

_UNWANTED = ("torch", "transformers")


def import_art(module: str = "art") -> ModuleType:
    """Import ART, or a module of it, and return it. Takes seconds the first time; thread-safe."""
    with IMPORTING:
        # Without it litellm, which ART imports, fetches a price list from the network.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        with _missing(*_UNWANTED):
            return import_module(module)


@contextmanager
def _missing(*names: str) -> Iterator[None]:
    """Modules that are not imported yet cannot be imported meanwhile."""
    absent = dict.fromkeys(name for name in names if name not in sys.modules)
    sys.modules.update(absent)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
