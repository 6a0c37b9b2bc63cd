"""YAML files that users write: one object with named fields."""

from pathlib import Path
from typing import Any

import yaml


class BadYamlFile(ValueError):
    """The file cannot be read, or does not contain an object."""


def read_object(path: Path, expected: str) -> dict[str, Any]:
    """Return the file's object; `expected` completes the error "must contain ...". Raises BadYamlFile."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadYamlFile(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise BadYamlFile(f"{path} must contain {expected}")
    return document
