"""What projects, models and places may be called."""

from typing import Annotated

from pydantic import Field

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
"""What a project or a model may be called: it becomes a directory name."""

DATASET_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"
"""What an inbox or a set of scenarios may be called: it becomes the name of a file."""

DATASET_VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}(@[0-9]{1,9})?$"
"""The same with a version, or without one."""

MODEL_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9._:@-]+)*$"
"""A model's name, which is never an address."""

PATH_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*"
"""A place in a store of objects: no slash at its ends, nothing that leads upwards."""

REPO_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
"""A repository of a hub, NAMESPACE/NAME."""

TINY_BASE = "learnloop/tiny"
"""The base model that is shipped."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
