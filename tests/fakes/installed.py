"""A temporarily installed package: entry points in a folder on the path."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from learnloop_service.environment import plugins


@contextmanager
def installed(site: Path, group: str, points: Mapping[str, str]) -> Iterator[None]:
    """Install the folder, with any modules in it, and these entry points by name, while the context is open."""
    info = site / "installed_for_a_test-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-for-a-test\nVersion: 0.1\n")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    sys.path.insert(0, str(site))
    plugins.registered.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        plugins.registered.cache_clear()
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(f"{site}/"):
                del sys.modules[name]
