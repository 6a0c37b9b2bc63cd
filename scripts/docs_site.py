"""Builds the documentation site in `build/site`, and checks it.

    python -m scripts.docs_site

The pages are the repository's own, unchanged: they are laid out in `build/docs` in the folders that they have, so links
between them work there. Only the command line's page is made here, from its help texts. `docs/site/zensical.toml` has
the navigation. Beside the pages the site has their Markdown, and `llms.txt`, which lists it for language models
(https://llmstxt.org). Fails if a link leads nowhere, if a page is not in the navigation, or if the site loads anything
from another host.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scripts.command_reference import reference

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
_SETTINGS = Path("docs/site/zensical.toml")
_BESIDE_DOCS = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", ".env.example"),
    "benchmarks/README.md",
    "configs/tools/orders.py",
    "plugins/mail/README.md",
    "plugins/sales/README.md",
    "training/engine/tiny_base/model/README.md",
)
"""Files outside of `docs/` that pages link to."""


class _Page(HTMLParser):
    """The links of a page, the files that it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values:
            self.loaded.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])


def faults(site: Path) -> Iterator[str]:
    """Yield what is wrong in the pages of a site: links that lead nowhere, and what is loaded from another host."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        # Its links begin at the root of a host, because it stands in for pages in any folder.
        if path.name == "404.html":
            continue
        name = path.relative_to(site)
        yield from (f"{name}: loads {url} from another host" for url in page.loaded if urlsplit(url).netloc)
        for url in (*page.links, *page.loaded):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name}: {url} leads nowhere"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {url} names no place on that page"


def listed(navigation: Sequence[Mapping[str, object]], source: Path) -> Iterator[str]:
    """Yield the lines of `llms.txt`: the navigation, with the first sentence of each page."""
    for section in navigation:
        for title, pages in section.items():
            yield f"\n## {title}\n"
            for path in _pages(pages):
                page = (source / path).read_text(encoding="utf-8")
                name = re.search(r"^# (.+)$", page, re.MULTILINE)
                yield f"- [{name[1] if name else path}]({path}): {_beginning(page)}"


def _beginning(page: str) -> str:
    """Return the first sentence of a page's prose, without marks."""
    text = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    prose = next(
        (part for part in text.split("\n\n") if part.strip() and not re.match(r"\n*( {4}|[#<!|`-])", part)), ""
    )
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(prose.split()))
    return re.split(r"(?<=[.!?])\s", plain)[0].removesuffix(":")


def unlisted(source: Path, navigation: object) -> list[str]:
    """Return the pages that the navigation does not have."""
    return sorted({str(path.relative_to(source)) for path in source.rglob("*.md")} - set(_pages(navigation)))


def _pages(navigation: object) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict):
        for below in navigation.values():
            yield from _pages(below)
    elif isinstance(navigation, list):
        for below in navigation:
            yield from _pages(below)


def _all_but_pages(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if not (name.endswith(".md") or (Path(folder) / name).is_dir())]


def _lay_out(source: Path) -> None:
    shutil.copytree(ROOT / "docs", source / "docs")
    for name in _BESIDE_DOCS:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    (source / "docs/cli.md").write_text(reference(), encoding="utf-8")


def main() -> None:
    source, site = BUILD / "docs", BUILD / "site"
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    _lay_out(source)
    settings = (source / _SETTINGS).rename(BUILD / _SETTINGS.name)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(settings)]
    if subprocess.run(command, env=os.environ | {"NO_COLOR": "1"}).returncode:
        sys.exit(1)
    # Zensical leaves hidden files out.
    shutil.copy(ROOT / ".env.example", site)
    project = tomllib.loads(settings.read_text(encoding="utf-8"))["project"]
    navigation = project["nav"]
    head = f"# {project['site_name']}\n\n> {project['site_description']}"
    (site / "llms.txt").write_text("\n".join([head, *listed(navigation, source), ""]), encoding="utf-8")
    shutil.copytree(source, site, ignore=_all_but_pages, dirs_exist_ok=True)
    missing = unlisted(source, navigation)
    problems = [*faults(site), *(f"{page} is not in the navigation ({_SETTINGS})" for page in missing)]
    for fault in problems:
        print(fault)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
