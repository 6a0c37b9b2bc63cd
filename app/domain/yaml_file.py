"""YAML files that users write: one object with named fields."""

from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Reads what JSON can hold: a date stays a text, as in JSON, where YAML makes an object of it."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raises yaml.YAMLError."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class BadYamlFile(ValueError):
    """The file cannot be read, or does not contain an object."""


def read_object(path: Path, expected: str) -> dict[str, Any]:
    """Return the file's object; `expected` completes the error "must contain ...". Raises BadYamlFile."""
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadYamlFile(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise BadYamlFile(f"{path} must contain {expected}")
    return document
