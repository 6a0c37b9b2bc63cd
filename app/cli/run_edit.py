"""`learnloop runs edit`: what the owner of a run says about it."""

from collections.abc import Sequence
from typing import Annotated

import typer

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.run_names import RunId
from learnloop_service.app.cli.terminal import Failure, print_result
from learnloop_service.environment.json_type import Json


def edit(
    run_id: RunId,
    name: Annotated[str | None, typer.Option(help="What to call the run; '' for the name of its model.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A tag to add; repeatable.")] = None,
    untags: Annotated[list[str] | None, typer.Option("--untag", help="A tag to remove; repeatable.")] = None,
    note: Annotated[str | None, typer.Option(help="Notes, in place of those that there are.")] = None,
    star: Annotated[bool | None, typer.Option("--star/--no-star", help="Star the run, or no longer.")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Name, tag, annotate or star a run. Training does not see any of it."""
    change: dict[str, Json] = {}
    if name is not None:
        change["name"] = name or None
    if note is not None:
        change["notes"] = note
    if star is not None:
        change["starred"] = star
    if not (change or tags or untags):
        raise Failure("Nothing to change: give --name, --tag, --untag, --note, --star or --no-star.")
    if tags or untags:
        change["tags"] = _edited(service.run(run_id)["tags"], tags or (), untags or ())
    edited = service.call("PATCH", f"/runs/{segment(run_id)}", json=change)
    print_result(edited, as_json, f"run {run_id} is edited")


def _edited(before: Sequence[str], added: Sequence[str], removed: Sequence[str]) -> list[str]:
    if unknown := [tag for tag in removed if tag not in before]:
        raise Failure(f"The run has no tag {unknown[0]!r}; its tags are: {', '.join(before) or 'none'}.")
    return list(dict.fromkeys([*(tag for tag in before if tag not in removed), *added]))
