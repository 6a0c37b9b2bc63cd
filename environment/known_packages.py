"""Packages that belong to Learnloop and are installed separately, by the entry points that they register.

`known_packages.json` lists them, so that who asks for one that is missing is told which package has it.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from environment import plugins


@cache
def _known() -> Mapping[str, Mapping[str, str]]:
    known: Mapping[str, Mapping[str, str]] = json.loads(
        files("environment").joinpath("known_packages.json").read_text(encoding="utf-8")
    )
    return known


def missing(group: str) -> Mapping[str, str]:
    """Return the names in the group that no installed package registers, each with what has to be installed."""
    registered = plugins.registered(group)
    return {
        name: f"the package {package}, which is not installed here (docs/install.md#packages says how to add it)"
        for name, package in _known().get(group, {}).items()
        if name not in registered
    }
