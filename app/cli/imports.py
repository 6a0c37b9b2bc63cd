"""`learnloop data import`: questions become tasks, and conversations become demonstrations and tasks."""

import re
from pathlib import PurePath
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from learnloop_service.app.cli.client import HERE, PATIENCE_S, ServiceAt, ServiceRefused
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.terminal import plain, print_json, results, say
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

_NO_EVALUATION = "--iterations 0 --set evaluation.scenarios=0 --set evaluation.test_scenarios=0"
_USUAL = "\\[default: one with a usual name]"


def import_file(
    file: Annotated[
        typer.FileBinaryRead,
        typer.Argument(
            metavar="FILE",
            help="Questions with answers as CSV, TSV, XLSX, JSON or JSON Lines; or conversations as JSON Lines or one "
            "JSON list, in OpenAI's or ShareGPT's form, or as Langfuse and Weave export them. - reads standard input.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of what it becomes. \\[default: that of the file, in lower case]")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="questions or conversations. \\[default: by the content]")] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Store nothing: show what it would become.")] = False,
    question: Annotated[str | None, typer.Option(help=f"Questions: their column. {_USUAL}")] = None,
    answer: Annotated[str | None, typer.Option(help=f"Questions: column of the expected answers. {_USUAL}")] = None,
    facts: Annotated[str | None, typer.Option(help=f"Questions: column of what the agent reads. {_USUAL}")] = None,
    header: Annotated[bool, typer.Option(help="Questions: whether the first row names the columns.")] = True,
    encoding: Annotated[
        str | None, typer.Option(help="Questions: such as gb18030. \\[default: by the content]")
    ] = None,
    opinion: Annotated[
        str | None, typer.Option(help="Conversations: the field or score that counts. \\[default: all known]")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Conversations: least number of a liked one. \\[default: thumbs only]")
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Conversations: the field with the user's key. \\[default: the usual ones]")
    ] = None,
    unrated: Annotated[
        str, typer.Option(help="Conversations: what those without opinion become: leave_out, demonstrations or tasks.")
    ] = "leave_out",
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Import a file: questions become tasks; of conversations what was liked becomes demonstrations, the rest tasks."""
    given = {**locals(), "name": name or _name_of(file.name)}
    wanted = {key: value for key, value in given.items() if key not in ("file", "service", "as_json")}
    try:
        made = service.within(PATIENCE_S).import_file(file.read(), **wanted)
    except ServiceRefused as refused:
        raise ServiceRefused(refused.status, f"{file.name} was not imported: {refused}") from refused
    print_json(made) if as_json else _print(made, service.url)


def _name_of(path: str) -> str:
    """Return a valid name for what is in the file."""
    return re.sub(r"[^a-z0-9_-]+", "-", PurePath(path).stem.lower()).strip("-_")[:63] or "data"


def _print(made: Json, url: str) -> None:
    _print_questions(made) if made["questions"] else _print_conversations(made)
    learned, tasks = made["demonstrations"], made["tasks"]
    if learned is not None:
        results.print(f"demonstrations {_called(learned)}: {counted(learned['count'], 'conversation')}")
    if tasks is not None:
        splits = ", ".join(f"{tasks[split]} {split}" for split in ("train", "validation", "test"))
        fits = f"the judge that fits: {tasks['judge']}"
        say(f"tasks {_called(tasks)}: {tasks['count']} ({splits}); {fits}")
    if made["left_out"]:
        table = Table("left out", "why", "lines", box=None, pad_edge=False)
        for each in made["left_out"]:
            more = ", ..." if each["count"] > len(each["lines"]) else ""
            table.add_row(str(each["count"]), plain(each["reason"]), ", ".join(map(str, each["lines"])) + more)
        results.print(table)
    if learned is not None and learned["version"]:
        command = f"learnloop train --demonstrations {learned['name']} {_NO_EVALUATION} --url {url}"
        say(f"learn from what was liked: {command}")
    if made["questions"] and tasks is not None and tasks["version"]:
        start = f"--set warm_start.demonstrations.oracle={tasks['train']}"
        command = (
            f"learnloop train --environment {tasks['environment']} --set environment.config.scenarios={tasks['name']}"
        )
        say(f"learn from them: {command} {start} --url {url}")
        say(f"the base: {made['questions']['base']}")


def _called(document: Json) -> str:
    return f"{document['name']}@{document['version']}" if document["version"] else f"{document['name']} (preview)"


def _print_questions(made: Json) -> None:
    found = made["questions"]
    chosen = ", ".join(f"{part}: {found[part] or 'none'}" for part in ("question", "answer", "facts"))
    say(f"{counted(made['lines'], 'row')} ({found['form']}); {chosen}")
    table = Table("row", *(escape(each) for each in found["columns"]), box=None, pad_edge=False)
    for row in found["rows"]:
        table.add_row(str(row["line"]), *map(plain, row["cells"]))
    results.print(table)
    if made["problem"]:
        say(f"it cannot be imported like this: {made['problem']}")
        return
    near = f"{found['near_duplicates']} nearly the same as another, which are in one split"
    say(f"{counted(found['different'], 'different question')}, {near}; {counted(found['answers'], 'different answer')}")


def _print_conversations(made: Json) -> None:
    found = made["conversations"]
    forms = ", ".join(f"{count} {form}" for form, count in found["forms"].items())
    say(
        f"{counted(made['lines'], 'line')}: {counted(found['conversations'], 'conversation')} ({forms}) of "
        f"{counted(found['users'], 'user')}, "
        f"{found['without_user']} without a user; {found['liked']} liked, {found['disliked']} disliked, "
        f"{found['unrated']} without a clear opinion"
    )
