"""Packages whose own code runs when something of it is first asked for: their modules can be imported without it.

`openai.types` imports a thousand classes of all of OpenAI's APIs; ART needs those of chat completions, which each of
its modules names. What asks for more gets it.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_LOCK = threading.RLock()
_running: set[str] = set()


@contextmanager
def later(package: str) -> Iterator[None]:
    """Of this package, and of packages in it, that are imported meanwhile the own code runs later."""
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._package and not name.startswith(f"{self._package}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.submodule_search_locations is not None and spec.loader is not None:
            spec.loader = _LaterLoader(spec.loader)
        return spec


class _LaterLoader(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        module.__class__ = _Later

    def run(self, module: ModuleType) -> None:
        """What `exec_module` left out."""
        self._loader.exec_module(module)


class _Later(ModuleType):
    """A package whose code has not run, or runs now. What it lacks so far makes it run, but for its modules: they are
    imported, as the import system would by their whole names."""

    def __getattr__(self, name: str) -> Any:
        if PathFinder.find_spec(f"{self.__name__}.{name}", self.__path__) is not None:
            return import_module(f"{self.__name__}.{name}")
        with _LOCK:
            if self.__name__ in _running:  # its code asks whether it has this already
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            if self.__class__ is _Later:
                assert self.__spec__ is not None
                assert isinstance(self.__spec__.loader, _LaterLoader)
                _running.add(self.__name__)
                try:
                    self.__spec__.loader.run(self)
                finally:
                    _running.remove(self.__name__)
                self.__class__ = ModuleType  # type: ignore[assignment]
        return getattr(self, name)
