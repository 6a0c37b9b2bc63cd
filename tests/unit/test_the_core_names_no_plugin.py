"""The service neither imports nor names the plug-ins of this repository; what it knows of them is in one data file."""

import json
import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.environment import plugins, registry
from tests.fakes.engine_process import ROOT

CORE = ("app", "environment", "judges", "learnloop", "training")
WORDS = re.compile(r"sales|learnloop_sales", re.IGNORECASE)
EXCEPTIONS = {
    "environment/known_plugins.json": "names what to install where a plug-in is missing",
    "training/engine/examination/probe_questions.json": "questions about a table of that name",
    "training/engine/tiny_base/model/README.md": "says what the model has seen",
    "training/engine/tiny_base/model/tokenizer.json": "has the word as a token",
}
_BUILT = re.compile(r"__pycache__|\.egg-info/|/build/|\.safetensors$")
KNOWN = json.loads(files("learnloop_service.environment").joinpath("known_plugins.json").read_text(encoding="utf-8"))
PROJECTS = {path.parent.name: tomllib.loads(path.read_text()) for path in ROOT.glob("plugins/*/pyproject.toml")}


def _named() -> Iterator[str]:
    for folder in CORE:
        for path in (ROOT / folder).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.is_file() and not _BUILT.search(name) and (WORDS.search(name) or WORDS.search(_text(path))):
                yield name


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", errors="replace")


def test_no_file_of_the_core_names_a_plugin() -> None:
    assert set(_named()) == EXCEPTIONS.keys()


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_what_a_plugin_brings_is_known_where_it_is_missing(name: str) -> None:
    project: dict[str, Any] = PROJECTS[name]["project"]
    [declared] = [plugin["names"] for plugin in KNOWN if plugin["distribution"] == project["name"]]
    brought = project["entry-points"]
    for group in ("learnloop.environments", "learnloop.judges"):
        assert sorted(declared.get(group, ())) == sorted(brought.get(group, ()))
    documents = [
        document for document, (owner, _) in registry.documents().items() if owner in brought.get(registry.GROUP, ())
    ]
    assert sorted(declared.get("documents", ())) == sorted(documents)


def test_a_name_that_no_plugin_of_ours_has_is_unknown() -> None:
    assert plugins.where_to_find(registry.GROUP, "chess") == ""
    assert "learnloop" not in registry.unknown("chess")
