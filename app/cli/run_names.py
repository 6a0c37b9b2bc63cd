"""Finds the run that a command names: by its id, by an end of it, which tables show, or as `latest`."""

import re
from typing import Annotated, Any

import typer

from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.terminal import Failure
from learnloop_service.environment.json_type import Json

_LATEST = "latest"
_ID = re.compile("[0-9A-HJKMNP-TV-Z]{26}")
_PART = re.compile("(?:run[- ])?\N{HORIZONTAL ELLIPSIS}?([0-9A-HJKMNP-TV-Z]{4,26})", re.IGNORECASE)
"""A part of an id, also as in names of models that were made from one: `run-01k...` and `run …4d6e8g`."""
_SEARCHED = 200
"""Newest runs that are searched for a part of an id."""
_LISTED = 5
"""Most runs that a message about an ambiguous part lists."""
_MEANS = "Id of the run, its last characters, or `latest`."


def run_named(service: Service, reference: str) -> str:
    """Return the id of the run that is meant. What fits no run is returned as it is: the service refuses it.

    Raises Failure if several runs fit, or if there is no latest one.
    """
    if reference == _LATEST:
        newest = service.runs(1)
        if not newest:
            raise Failure(f"there is no run yet at {service.url}; start one with `learnloop train`")
        return str(newest[0]["run_id"])
    part = _PART.fullmatch(reference)
    if part is None or _ID.fullmatch(reference):
        return reference
    ends = part[1].upper()
    listed = service.runs(_SEARCHED, search=ends)
    matches = [run for run in listed if run["run_id"].startswith(ends) or run["run_id"].endswith(ends)]
    if len(matches) > 1:
        raise Failure(_ambiguous(reference, matches))
    return str(matches[0]["run_id"]) if matches else reference


def model_named(service: Service, reference: str) -> str:
    """Return the name of a model, with the id of the run that it names, if it is that of a run."""
    name, at, step = reference.partition("@")
    return reference if "/" in name else f"{run_named(service, name)}{at}{step}"


def with_runs_named(service: Service, request: Json) -> Json:
    """Return the request for an evaluation with the ids of the runs that it names."""
    named: dict[str, Json] = {}
    if isinstance(run := request.get("run_id"), str):
        named["run_id"] = run_named(service, run)
    if isinstance(models := request.get("models"), list):
        named["models"] = [_with_model_named(service, chosen) for chosen in models]
    return request | named


def _with_model_named(service: Service, chosen: Json) -> Json:
    if isinstance(chosen, dict) and isinstance(chosen.get("model"), str):
        return chosen | {"model": model_named(service, chosen["model"])}
    return chosen


def _ambiguous(reference: str, matches: list[Json]) -> str:
    lines = [
        f"\n  {run['run_id']}  {run['name'] or run['model']['name']}, {run['status']}" for run in matches[:_LISTED]
    ]
    more = [f"\n  and {len(matches) - _LISTED} more"] if len(matches) > _LISTED else []
    return "".join([f"{reference!r} could be any of {len(matches)} runs; give more of the id:", *lines, *more])


def _run(context: typer.Context, reference: str | None) -> str | None:
    """The callback of a parameter that takes a run. The service is an eager option, so it is known here."""
    return None if reference is None else run_named(context.obj, reference)


def _models(context: typer.Context, references: Any) -> Any:
    """The callback of a parameter that takes names of models: one, several or none."""
    if isinstance(references, str):
        return model_named(context.obj, references)
    return references and [model_named(context.obj, reference) for reference in references]


RunId = Annotated[str, typer.Argument(metavar="RUN_ID", callback=_run, help=_MEANS)]
OptionalRunId = Annotated[
    str | None, typer.Argument(metavar="[RUN_ID]", callback=_run, help=_MEANS, show_default=False)
]


def run_option(name: str, help: str) -> Any:
    """Return an option that names a run."""
    return typer.Option(name, metavar="RUN_ID", callback=_run, help=f"{help} Its id, the end of it, or `latest`.")


def model_option(help: str) -> Any:
    """Return the option `--model`, which can name a run, or several."""
    return typer.Option("--model", callback=_models, help=help)
