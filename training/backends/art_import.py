"""Imports ART without torch: the service does no tensor work and should not carry 300 MB for it.

`import art` imports transformers, and so torch, to patch a function that only local training uses.
Where they count as missing it goes without: a None in `sys.modules` makes an import raise ImportError.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from types import ModuleType

_UNWANTED = ("torch", "transformers")
_lock = Lock()


def import_art(module: str = "art") -> ModuleType:
    """Import ART, or a module of it, and return it. Takes seconds the first time; thread-safe."""
    with _lock:
        # Else litellm fetches a price list from the network at import.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        with _missing(*(name for name in _UNWANTED if name not in sys.modules)):
            return import_module(module)


@contextmanager
def _missing(*names: str) -> Iterator[None]:
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
