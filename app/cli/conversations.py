"""`learnloop data import-conversations`: conversations that exist already become demonstrations and tasks."""

from typing import Annotated

import typer
from rich.table import Table

from app.cli.client import Service, ServiceRefused
from app.cli.options import DEFAULT_URL, AsJson, Url
from app.cli.terminal import plain, print_json, results
from environment.json_type import Json

_UPLOAD_TIMEOUT_S = 600.0


def import_conversations(
    name: Annotated[str, typer.Argument(help="Name of what they become: letters, digits, '-' and '_'.")],
    file: Annotated[
        typer.FileBinaryRead,
        typer.Argument(
            metavar="FILE",
            help="JSON Lines, or one JSON list: conversations in OpenAI's or ShareGPT's form, or as Langfuse and Weave "
            "export them. - reads standard input.",
        ),
    ],
    opinion: Annotated[
        str | None, typer.Option(help="Name of the field or score that counts. \\[default: all known]")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Least number of a conversation that was liked. \\[default: thumbs only]")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Name of the field with the user's key. \\[default: the usual ones]")
    ] = None,
    unrated: Annotated[
        str, typer.Option(help="What becomes of conversations without opinion: leave_out, demonstrations or tasks.")
    ] = "leave_out",
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Import conversations: what was liked becomes demonstrations, what was disliked becomes tasks."""
    with Service(url, timeout_s=_UPLOAD_TIMEOUT_S) as service:
        wanted = {"name": name, "opinion": opinion, "threshold": threshold, "user": user, "unrated": unrated}
        try:
            made = service.import_conversations(file.read(), **wanted)
        except ServiceRefused as refused:
            raise ServiceRefused(refused.status, f"{file.name} was not imported: {refused}") from refused
    if as_json:
        print_json(made)
        return
    _print(made, url)


def _print(made: Json, url: str) -> None:
    forms = ", ".join(f"{count} {form}" for form, count in made["forms"].items())
    results.print(
        f"{made['lines']} lines: {made['conversations']} conversations ({forms}) of {made['users']} users, "
        f"{made['without_user']} without a user; {made['liked']} liked, {made['disliked']} disliked, "
        f"{made['unrated']} without a clear opinion",
        soft_wrap=True,
    )
    learned, tasks = made["demonstrations"], made["tasks"]
    if learned is not None:
        results.print(f"demonstrations {learned['name']}@{learned['version']}: {learned['count']} conversations")
    if tasks is not None:
        splits = ", ".join(f"{tasks[split]} {split}" for split in ("train", "validation", "test"))
        called = f"{tasks['name']}@{tasks['version']}"
        results.print(
            f"tasks {called}: {tasks['count']} ({splits}); the judge that fits: {tasks['judge']}", soft_wrap=True
        )
    if made["left_out"]:
        table = Table("left out", "why", "lines", box=None, pad_edge=False)
        for each in made["left_out"]:
            more = ", ..." if each["count"] > len(each["lines"]) else ""
            table.add_row(str(each["count"]), plain(each["reason"]), ", ".join(map(str, each["lines"])) + more)
        results.print(table)
    if learned is not None:
        only = "--iterations 0 --set evaluation.scenarios=0 --set evaluation.test_scenarios=0"
        command = f"learnloop train --demonstrations {learned['name']} {only} --url {url}"
        results.print(f"learn from what was liked: {command}", soft_wrap=True)
