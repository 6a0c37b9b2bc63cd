"""The files of the dashboard as browsers get them: read, joined and compressed once.

All style sheets become one file, and all modules two scripts, so that the page needs few requests: the second script
has the pages that are opened less often, and is loaded with the first of them. Their common path contains a hash of all
of them, so that browsers can cache them forever and never mix two versions.
"""

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

import structlog

from learnloop_service.app.dashboard.bundle import CORE, added, in_core, joined
from learnloop_service.environment import registry
from learnloop_service.environment.traits import RunPage

log = structlog.get_logger(__name__)
_PAGE, _MAIN, _OTHERS = "index.html", "main.js", "others.js"
_UNJOINED = {"theme.js": "text/javascript", "icon.svg": "image/svg+xml"}
_STYLES = ("style/base.css", "style/layout.css", "style/parts.css", "style/tables.css", "style/pages.css")
"""The style sheets, in the order in which they apply."""


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
    served = {name: _file(root.joinpath(name).read_bytes(), media_type) for name, media_type in _UNJOINED.items()}
    script = joined(modules, _MAIN)
    served[_MAIN] = _file(script.encode(), "text/javascript")
    core = in_core(modules)
    others = added(core, f"{CORE}/pages/{_OTHERS}", "pageOf", f"./{_MAIN}", script)
    served[_OTHERS] = _file(others.encode(), "text/javascript")
    served["style.css"] = _file(b"\n".join(root.joinpath(name).read_bytes() for name in _STYLES), "text/css")
    pages = dict(_pages(script, core, served))
    digest = hashlib.sha256()
    for name, file in sorted(served.items()):
        digest.update(f"{name}\0{len(file.content)}\0".encode() + file.content)
    version = digest.hexdigest()[:16]
    page = root.joinpath(_PAGE).read_text(encoding="utf-8").replace("{version}", version)
    page = page.replace("{pages}", escape(json.dumps(pages)))
    return Dashboard(page, version, served)


def _pages(
    script: str, core: Mapping[str, str], files: dict[str, File]
) -> Iterator[tuple[str, list[dict[str, str | None]]]]:
    """Yield the pages of each environment with its name, and add their files. A page that is broken in any way is
    logged and left out, since the rest of the dashboard works without it."""
    for environment in registry.names():
        listed = []
        for page in registry.traits(environment).pages:
            try:
                path = f"environments/{environment}/{page.name}"
                page_files = {f"{path}.js": _file(_script(page, core, script).encode(), "text/javascript")}
                if page.style is not None:
                    page_files[f"{path}.css"] = _file(page.folder.joinpath(page.style).read_bytes(), "text/css")
                listed.append(
                    {
                        "name": str(page.name),
                        "title": str(page.title),
                        "script": f"{path}.js",
                        "style": None if page.style is None else f"{path}.css",
                    }
                )
            except Exception as error:
                log.error("page left out", environment=environment, page=str(page), error=repr(error))
            else:
                files |= page_files
        if listed:
            yield environment, listed


def _script(page: RunPage, core: Mapping[str, str], script: str) -> str:
    modules = {name: file.read_text(encoding="utf-8") for name, file in _below(page.folder) if name.endswith(".js")}
    return added({**core, **modules}, page.module, "Page", f"../../{_MAIN}", script)


def _file(content: bytes, media_type: str) -> File:
    return File(content, media_type, gzip.compress(content, mtime=0))


def _below(folder: Traversable, path: str = "") -> Iterator[tuple[str, Traversable]]:
    for child in folder.iterdir():
        if child.is_dir():
            yield from _below(child, f"{path}{child.name}/")
        else:
            yield path + child.name, child
