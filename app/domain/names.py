"""Patterns for the names of projects, models, datasets and paths."""

from typing import Annotated

from pydantic import Field

from learnloop_service.training.bases import defaults

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""Name of a project or model, which is also used as a directory name."""

DATASET_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
"""Name of an inbox or a set of scenarios, which is also used as a file name."""

DATASET_VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}(@[0-9]{1,9})?$"
"""Name of a dataset, with or without a version."""

MODEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9._:@-]+)*$"
"""Name of a model, which is never a URL."""

PATH_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*"
"""Path in an object store: no slash at either end, and no way to a parent folder."""

REPO_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
"""Repository on a hub, as NAMESPACE/NAME."""

TINY_BASE = defaults.TINY_BASE
"""The base model that ships with Learnloop."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
