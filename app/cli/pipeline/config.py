"""The YAML file of a pipeline. Its sections are checked before anything runs, and errors name the line."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from learnloop_service.app.cli.data_sources import data_source
from learnloop_service.app.cli.run_request import BadRunFile, overlay
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.app.domain.names import NAME_PATTERN
from learnloop_service.app.domain.yaml_file import parse_yaml
from learnloop_service.app.schemas.evaluations import EvaluationRequest
from learnloop_service.app.schemas.run_request import EnvironmentChoice, LearnLoopRequest
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.validation_message import message_of

OLD_PROMOTE = "deploy"
"""What the section and the step `promote` were called. Files and commands with it still work."""
_PLACEHOLDER = "the run of the pipeline"
Recipe = TypeVar("Recipe", bound=BaseModel)
"""The settings of what prepares the data."""


class BadPipeline(ValueError):
    """The file does not describe a pipeline. The message names file and line."""


class PromoteSection(BaseModel):
    """The name that the best checkpoint is promoted to."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN)] = Field(alias="as")
    """A name in the model's project."""
    if_better: bool = False
    """Promote only if a trial on held-out scenarios shows that it is better than the checkpoint with that name."""


class PipelineFile(BaseModel, Generic[Recipe]):
    """A pipeline. A step without a section is skipped."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
    """Name of the pipeline, and prefix of its models' default names. Default: the file's name without its suffix."""
    data: Recipe | None = None
    """The settings of what prepares data for the environment."""
    train: LearnLoopRequest
    """The fields of `POST /learn-loop`."""
    eval: EvaluationRequest | None = None
    """The fields of `POST /evaluations`."""
    promote: PromoteSection | None = None


class LoadedPipeline:
    """A pipeline file that was read. Its sections are sent as written, and the service fills in the defaults."""

    def __init__(self, path: Path, settings: Mapping[str, Json] | None = None) -> None:
        """`settings` replace values at dotted paths of the file; None removes one. Raises BadPipeline."""
        try:
            text = path.read_text(encoding="utf-8")
            tree = yaml.compose(text, Loader=yaml.SafeLoader)
            document = parse_yaml(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise BadPipeline(f"{path}:{line}: {error.problem or error.context}") from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise BadPipeline(f"cannot read {path}: {error}") from error
        if not isinstance(document, dict):
            raise BadPipeline(f"{path}:1: expected the sections data, train, eval and promote")
        settings = {_renamed(path): value for path, value in (settings or {}).items()}
        _rename_old_section(document, tree)
        try:
            document = overlay(document, settings)
        except BadRunFile as error:
            raise BadPipeline(str(error)) from error
        for gone in (where for where, value in settings.items() if value is None):
            _remove(document, gone)
        document.setdefault("name", path.stem)
        document = {name: value for name, value in document.items() if value is not None}
        try:
            self.source = data_source(_environment(document)) if "data" in document else None
            form = PipelineFile if self.source is None else PipelineFile[self.source.recipe()]  # type: ignore[misc]
            self.file: PipelineFile[Any] = form.model_validate(_runnable(document))
        except ValidationError as error:
            raise BadPipeline("\n".join(_lines(path, tree, error))) from error
        except Failure as failure:
            raise BadPipeline(f"{path}:{_line(tree, ('data',))}: data: {failure}") from failure
        self.name = self.file.name
        self._sections = document

    def section(self, name: str) -> dict[str, Json] | None:
        """Return a section as written, or None if it is missing."""
        content = self._sections.get(name)
        return dict(content) if content is not None else None


def _renamed(path: str) -> str:
    """Return the path of a field, with the new name of its section."""
    section, dot, field = path.partition(".")
    return f"promote{dot}{field}" if section == OLD_PROMOTE else path


def _rename_old_section(document: dict[str, Json], tree: yaml.Node | None) -> None:
    """Give the section `deploy` its new name, unless there is one of that name."""
    if OLD_PROMOTE in document and "promote" not in document:
        document["promote"] = document.pop(OLD_PROMOTE)
        for key, _ in tree.value if tree is not None else ():
            key.value = _renamed(key.value)


def _environment(document: Mapping[str, Json]) -> str:
    """Return the environment that the section `train` names, or the default without a usable one."""
    train = document.get("train")
    environment = train.get("environment") if isinstance(train, dict) else None
    name = environment.get("name") if isinstance(environment, dict) else environment
    return name if isinstance(name, str) else EnvironmentChoice().name


def _remove(document: dict[str, Json], path: str) -> None:
    *parents, last = path.split(".")
    node: Json = document
    for parent in parents:
        node = node.get(parent) if isinstance(node, dict) else None
    if isinstance(node, dict):
        node.pop(last, None)


def _runnable(document: Mapping[str, Json]) -> dict[str, Json]:
    """Insert a placeholder run into an `eval` section without one. It stands for the run that the pipeline creates."""
    section = document.get("eval")
    if not isinstance(section, dict) or "run_id" in section:
        return dict(document)
    return {**document, "eval": {**section, "run_id": _PLACEHOLDER}}


def _lines(path: Path, tree: yaml.Node | None, error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        where = ".".join(map(str, detail["loc"]))
        yield f"{path}:{_line(tree, detail['loc'])}: {where}: {message_of(detail)}"


def _line(tree: yaml.Node | None, loc: Sequence[int | str]) -> int:
    """Return the line of the node at that path, or of its closest ancestor in the file."""
    node, line = tree, 1
    for part in loc:
        child = _child(node, part)
        if child is None:
            break
        line, node = child
    return line


def _child(node: yaml.Node | None, part: int | str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((key.start_mark.line + 1, value) for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line + 1, node.value[part]
    return None


def digest(*inputs: Json) -> str:
    """Return a hash of a step's inputs."""
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
