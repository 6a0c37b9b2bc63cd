"""The version stands in pyproject.toml. Files that cannot read it there name the same one."""

import json
import re
import tomllib
from importlib.metadata import version

from tests.fakes.engine_process import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
_NAMED = re.compile(
    r"learnloop(?:[_-]client|-cuda|-ray|-migration)?[-:](\d+\.\d+\.\d+)|newTag: (\S+)|VERSION=(\d+\.\d+\.\d+)"
)


def test_wheels_and_images_are_named_by_the_version() -> None:
    pages = [ROOT / "Dockerfile", *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.yaml")]
    named = {
        (page.name, "".join(match.groups(default=""))) for page in pages for match in _NAMED.finditer(page.read_text())
    }
    assert {other for other in named if other[1] != VERSION} == set()
    assert {page for page, _ in named} >= {
        "Dockerfile", "deployment.md", "install.md", "kustomization.yaml", "migration.yaml"
    }  # fmt: skip


def test_the_newest_release_of_the_changelog_is_this_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert re.fullmatch(re.escape(VERSION) + r" \(\d{4}-\d\d-\d\d\)", headings[1])


def test_the_released_api_is_that_of_this_version() -> None:
    assert json.loads((ROOT / "docs/openapi.json").read_text())["info"]["version"] == VERSION


def test_what_is_installed_is_this_version() -> None:
    """`/health/live`, `/openapi.json`, `learnloop --version` and reports read it there."""
    assert version("learnloop") == version("learnloop-client") == VERSION
