"""The files of the dashboard as browsers get them: read, joined and compressed once.

All modules become one script and all style sheets one, so that the page needs few requests. Their common path contains
a hash of all of them, so that browsers can cache them forever and never mix two versions.
"""

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from learnloop_service.app.dashboard.bundle import joined

_PAGE, _MAIN = "index.html", "main.js"
_UNJOINED = {"theme.js": "text/javascript", "icon.svg": "image/svg+xml"}
_STYLES = ("style/base.css", "style/layout.css", "style/parts.css", "style/tables.css", "style/pages.css")
"""In the order in which they apply."""


@dataclass(frozen=True, slots=True)
class File:
    """A file and its media type."""

    content: bytes
    media_type: str
    compressed: bytes
    """The content by gzip."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """The page and the files that it loads, by name."""

    page: str
    version: str
    """Hash of all files; it changes when any of them does."""
    files: Mapping[str, File]


@cache
def dashboard() -> Dashboard:
    """Read the files on first use, so that they do not delay the start of the service."""
    root = files("learnloop_service.app.dashboard").joinpath("static")
    modules = {name: file.read_text(encoding="utf-8") for name, file in _below(root) if name.endswith(".js")}
    found = {name: _file(root.joinpath(name).read_bytes(), media_type) for name, media_type in _UNJOINED.items()}
    found[_MAIN] = _file(joined(modules, _MAIN).encode(), "text/javascript")
    found["style.css"] = _file(b"\n".join(root.joinpath(name).read_bytes() for name in _STYLES), "text/css")
    digest = hashlib.sha256()
    for name, file in sorted(found.items()):
        digest.update(f"{name}\0{len(file.content)}\0".encode() + file.content)
    version = digest.hexdigest()[:16]
    page = root.joinpath(_PAGE).read_text(encoding="utf-8").replace("{version}", version)
    return Dashboard(page, version, found)


def _file(content: bytes, media_type: str) -> File:
    return File(content, media_type, gzip.compress(content, mtime=0))


def _below(folder: Traversable, path: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{path}{each.name}/")
        else:
            yield path + each.name, each
