"""Environments by name: the shipped ones and those that installed packages register.

A package adds one with an entry point in the group `learnloop.environments` that names a builder: a callable that takes
the request's `environment.config` and the data directory and returns an Environment.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from learnloop_service.environment import plugins
from learnloop_service.environment.access import Access, NeedsAccess
from learnloop_service.environment.base import Environment, Json
from learnloop_service.environment.contract import checked
from learnloop_service.environment.traits import Document, Traits

GROUP = "learnloop.environments"


class UnknownEnvironment(Exception):
    """No environment with that name is registered."""


def names() -> list[str]:
    """Return the registered names, sorted."""
    return sorted(plugins.registered(GROUP))


def build(name: str, config: Mapping[str, Json], data_dir: Path, access: Access | None = None) -> Environment:
    """Build the environment with that name, with checks of each call. `access` is what the operator lets it reach;
    without it, an environment that needs access can be inspected but opens no episode.

    Raises UnknownEnvironment, ValueError for a bad config or for something that the operator does not allow, or
    PluginFault.
    """
    if (point := plugins.registered(GROUP).get(name)) is None:
        raise UnknownEnvironment(unknown(name))
    plugin = plugins.build("environment", point, config, data_dir)
    environment = checked(name, plugin)
    if access is not None and isinstance(plugin, NeedsAccess):
        plugin.admit(access)
    return environment


def unknown(name: str) -> str:
    """Return what is wrong with a name that no environment has: the package that has it, or else the known names."""
    where = plugins.where_to_find(GROUP, name) or f"Available: {', '.join(names())}."
    return f"Unknown environment {name!r}. {where}"


def traits(name: str) -> Traits:
    """Return what the environment with that name declares about its config; empty if it is unknown or cannot be
    loaded."""
    point = plugins.registered(GROUP).get(name)
    return Traits() if point is None else plugins.declared("environment", point, Traits)


def task_schema(name: str) -> dict[str, Json] | None:
    """Return the JSON schema of the environment's tasks; None if it does not say, or if that is not the schema of an
    object with properties."""
    try:
        task = json.loads(json.dumps(traits(name).task))
        properties, required = task["properties"], task.get("required", [])
    except (TypeError, ValueError, LookupError, AttributeError):
        return None
    fits = isinstance(properties, dict) and all(
        isinstance(property_schema, dict) and isinstance(property_schema.get("examples", []), list)
        for property_schema in properties.values()
    )
    return task if fits and isinstance(required, list) and set(map(type, required)) <= {str} else None


def document(setting: str) -> tuple[str, Document]:
    """Return the environment that has this setting, and what its value is. Raises UnknownEnvironment."""
    if (owner := documents().get(setting)) is None:
        where = plugins.where_to_find("documents", setting)
        raise UnknownEnvironment(f"No environment that is installed here takes a {setting}. {where}".rstrip())
    return owner


def documents() -> dict[str, tuple[str, Document]]:
    """Return the settings of all environments that are documents, each with its environment's name."""
    return {setting: (name, document) for name in names() for setting, document in traits(name).documents.items()}
