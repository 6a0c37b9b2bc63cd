"""YAML files that people write: one object with named fields."""

from pathlib import Path
from typing import Any

import yaml


class BadYamlFile(ValueError):
    """The file cannot be read, or holds something else."""


def read_object(path: Path, expected: str) -> dict[str, Any]:
    """What the file holds; `expected` completes "must contain ...". Raises BadYamlFile."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadYamlFile(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise BadYamlFile(f"{path} must contain {expected}")
    return document
