"""The body of POST /learn-loop, from a YAML file and flags. The service validates it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import typer
import yaml

from learnloop_service.app.domain.yaml_file import BadYamlFile, parse_yaml, read_object
from learnloop_service.environment.json_type import Json


class BadRunFile(typer.BadParameter):
    """The file or a setting does not describe a run: a usage error, unless a command catches it."""


def read_run_file(path: Path) -> dict[str, Json]:
    """Return the run that a YAML file describes. Raises BadRunFile."""
    try:
        return read_object(path, "the fields of a run, such as `iterations: 20`")
    except BadYamlFile as error:
        raise BadRunFile(str(error)) from error


def read_graph_file(path: Path) -> Json:
    """Return the nodes in a JSON file: a list, or `{"graph": [...]}` as frontends post it. Raises BadRunFile."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadRunFile(f"cannot read {path}: {error}") from error
    nodes = document.get("graph") if isinstance(document, dict) else document
    if not isinstance(nodes, list):
        raise BadRunFile(f'{path} must contain a list of nodes, or {{"graph": [...]}}')
    return nodes


def overlay(request: Mapping[str, Json], values: Mapping[str, Json]) -> dict[str, Json]:
    """Return the request with the values at dotted paths (`model.name`) replaced; None leaves a path unchanged.

    Raises BadRunFile if a path leads through a value without fields.
    """
    result = dict(request)
    for path, value in values.items():
        if value is not None:
            _assign(result, path, value)
    return result


def _assign(request: dict[str, Json], path: str, value: Json) -> None:
    *parents, last = path.split(".")
    section = request
    for parent in parents:
        inner = section.get(parent, {})
        if not isinstance(inner, dict):
            raise BadRunFile(f"{path}: {parent!r} is {inner!r} and has no fields")
        section[parent] = dict(inner)
        section = section[parent]
    section[last] = value


def parse_settings(settings: Iterable[str]) -> dict[str, Json]:
    """Parse settings such as `evaluation.every=5` into paths and YAML values. Raises BadRunFile."""
    values = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not all(path.split(".")):
            raise BadRunFile(f"{setting!r} must look like evaluation.every=5")
        try:
            values[path] = parse_yaml(text)
        except yaml.YAMLError as error:
            raise BadRunFile(f"{setting!r}: {error}") from error
    return values
