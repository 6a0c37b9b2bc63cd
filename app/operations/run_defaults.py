"""Fills in the defaults of a learn-loop request, and turns its short forms into the form in which runs are stored."""

from typing import Any

from app.errors import InvalidRequest
from app.schemas.run_request import Judges, LearnLoopRequest, SourceChoice
from app.settings import Settings
from environment.registry import documents

_OF_SESSIONS = "agent"
"""The environment whose scenarios can come from sessions."""


def with_defaults(request: LearnLoopRequest, settings: Settings, run_id: str) -> dict[str, Any]:
    """The request as a run is stored, but for its judge. Raises InvalidRequest for short forms that contradict."""
    return {
        **request.model_dump(exclude={"graph", "depth", "source", "environment", "judge", "webhooks", "train_options"}),
        "environment": _environment(request),
        "max_turns": _max_turns(request),
        "train_options": request.train_options.model_dump(exclude_none=True),
        "backend": request.backend or settings.backend,
        "model": {
            "name": request.model.name or settings.art_model_name or f"run-{run_id.lower()}",
            "project": request.model.project or settings.art_project,
            "base_model": request.model.base_model or settings.art_base_model,
        },
    }


def judge_with_defaults(judge: Judges | None, default: str) -> dict[str, Any]:
    """The judge as a run is stored; `default` is the environment's."""
    if isinstance(judge, list):
        return {"name": "blend", "config": {"judges": [part.model_dump() for part in judge]}}
    if judge is None:
        return {"name": default, "config": {}}
    return {"name": judge.name or default, "config": judge.config}


def _environment(request: LearnLoopRequest) -> dict[str, Any]:
    # Not dumped but taken as they are: a graph in there may be large.
    name, config = request.environment.name, request.environment.config
    if request.source is not None:
        return {"name": name, "config": _from_source(request, request.source)}
    if request.graph is None:
        return {"name": name, "config": config}
    meant, _ = documents()["graph"]
    if "name" in request.environment.model_fields_set and name != meant:
        raise InvalidRequest(
            ("body", "graph"), f"A graph can only be given for the environment {meant}, not for {name}."
        )
    if "graph" in config:
        raise InvalidRequest(("body", "graph"), "Give either graph or environment.config.graph.")
    return {"name": meant, "config": {**config, "graph": request.graph}}


def _from_source(request: LearnLoopRequest, source: SourceChoice) -> dict[str, Any]:
    """The config with the scenarios of the source."""
    name, config = request.environment.name, request.environment.config
    if name != _OF_SESSIONS or request.graph is not None:
        raise InvalidRequest(
            ("body", "source"), f"Scenarios from sessions are for the environment {_OF_SESSIONS}, not for {name}."
        )
    if "scenarios" in config:
        raise InvalidRequest(("body", "source"), "Give either source or environment.config.scenarios.")
    return {**config, "scenarios": {"sessions": source.sessions}}


def _max_turns(request: LearnLoopRequest) -> int | None:
    if request.depth is None:
        return request.max_turns
    if request.graph is None:
        raise InvalidRequest(("body", "depth"), "depth can only be given with graph; use max_turns.")
    if request.max_turns is not None:
        raise InvalidRequest(("body", "depth"), "depth and max_turns mean the same; give only one of them.")
    return request.depth
