"""The files of the dashboard, read once.

Their common path contains a hash of all of them, so that browsers can cache them forever and never mix two versions.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

_SERVED = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_PAGE = "index.html"


@dataclass(frozen=True, slots=True)
class File:
    """A file and its media type."""

    content: bytes
    media_type: str


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
    root = files("app.dashboard").joinpath("static")
    found = {name: File(file.read_bytes(), _SERVED[_ending(name)]) for name, file in sorted(_below(root))}
    digest = hashlib.sha256()
    for name, file in found.items():
        digest.update(f"{name}\0{len(file.content)}\0".encode() + file.content)
    version = digest.hexdigest()[:16]
    return Dashboard(_page(root.joinpath(_PAGE).read_text(encoding="utf-8"), version, found), version, found)


def _below(folder: Traversable, path: str = "") -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _below(each, f"{path}{each.name}/")
        elif _ending(each.name) in _SERVED:
            yield path + each.name, each


def _ending(name: str) -> str:
    return "." + name.rpartition(".")[2]


def _page(template: str, version: str, found: Mapping[str, File]) -> str:
    """Return the page with a preload link for every module, so that a browser fetches them in parallel."""
    preloads = "\n".join(
        f'<link rel="modulepreload" href="assets/{version}/{escape(name)}">'
        for name, file in found.items()
        if file.media_type == "text/javascript" and name != "theme.js"
    )
    return template.replace("{version}", version).replace("{preloads}", preloads)
