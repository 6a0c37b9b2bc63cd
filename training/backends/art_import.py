"""Imports ART without torch, litellm and polars: the service does no tensor work, and a run begins seconds sooner.

`import art` imports transformers, and so torch, to patch a function that only local training uses. Where they count as
missing it goes without: a None in `sys.modules` makes an import raise ImportError. Of litellm it takes one class, to
ask whether something is one of its choices: a class of ours stands in, which asks that without importing litellm.
polars it needs to read back what it logged, which we do not: a module of ours stands in, which imports it when used.
Of openai's types it needs few (later_packages.py).
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from training.backends.later_packages import later
from training.import_lock import IMPORTING

_UNWANTED = ("torch", "transformers")
_CHOICES = "litellm.types.utils"
_TABLES = "polars"


def import_art(module: str = "art") -> ModuleType:
    """Import ART, or a module of it, and return it. Takes a second the first time; thread-safe."""
    with IMPORTING:
        # Else litellm, where it is imported after all, fetches a price list from the network.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        with _in_place(dict.fromkeys(_UNWANTED)):
            if "art" not in sys.modules:
                _import_lightly()
            return import_module(module)


def _import_lightly() -> None:
    try:
        with later("openai.types"), _in_place({**_choices_only(), _TABLES: _WhenUsed(_TABLES)}):
            import_module("art")
    except (ImportError, AttributeError):  # an ART that needs more of them
        import_module("art")


class _WhenUsed(ModuleType):
    """Stands for a module, which is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


class _Choices(type):
    """Nothing is one of litellm's choices before litellm is imported."""

    def __instancecheck__(cls, value: object) -> bool:
        real = getattr(sys.modules.get(_CHOICES), "Choices", None)
        return real is not None and isinstance(value, real)


def _choices_only() -> dict[str, ModuleType]:
    packages = {name: ModuleType(name) for name in ("litellm", "litellm.types", _CHOICES)}
    for package in packages.values():
        package.__path__ = []
    packages[_CHOICES].Choices = _Choices("Choices", (), {})  # type: ignore[attr-defined]
    return packages


@contextmanager
def _in_place(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Those of the modules that are not imported, in the place of the real ones. Nothing if all are."""
    missing = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(missing)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
