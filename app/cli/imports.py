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
    parameters = {**locals(), "name": name or _name_of(file.name)}
    query = {key: value for key, value in parameters.items() if key not in ("file", "service", "as_json")}
    try:
        reply = service.within(PATIENCE_S).import_file(file.read(), **query)
    except ServiceRefused as refused:
        raise ServiceRefused(refused.status, f"{file.name} was not imported: {refused}") from refused
    print_json(reply) if as_json else _print(reply, service.url)


def _name_of(path: str) -> str:
    """Return a valid name for what is in the file."""
    return re.sub(r"[^a-z0-9_-]+", "-", PurePath(path).stem.lower()).strip("-_")[:63] or "data"


def _print(reply: Json, url: str) -> None:
    _print_questions(reply) if reply["questions"] else _print_conversations(reply)
    learned, tasks = reply["demonstrations"], reply["tasks"]
    if learned is not None:
        results.print(f"demonstrations {_called(learned)}: {counted(learned['count'], 'conversation')}")
    if tasks is not None:
        splits = ", ".join(f"{tasks[split]} {split}" for split in ("train", "validation", "test"))
        fits = f"the judge that fits: {tasks['judge']}"
        say(f"tasks {_called(tasks)}: {tasks['count']} ({splits}); {fits}")
    if reply["left_out"]:
        table = Table("left out", "why", "lines", box=None, pad_edge=False)
        for group in reply["left_out"]:
            more = ", ..." if group["count"] > len(group["lines"]) else ""
            table.add_row(str(group["count"]), plain(group["reason"]), ", ".join(map(str, group["lines"])) + more)
        results.print(table)
    if learned is not None and learned["version"]:
        command = f"learnloop train --demonstrations {learned['name']} {_NO_EVALUATION} --url {url}"
        say(f"learn from what was liked: {command}")
    if reply["questions"] and tasks is not None and tasks["version"]:
        start = f"--set warm_start.demonstrations.oracle={tasks['train']}"
        command = (
            f"learnloop train --environment {tasks['environment']} --set environment.config.scenarios={tasks['name']}"
        )
        say(f"learn from them: {command} {start} --url {url}")
        say(f"the base: {reply['questions']['base']}")


def _called(document: Json) -> str:
    return f"{document['name']}@{document['version']}" if document["version"] else f"{document['name']} (preview)"


def _print_questions(reply: Json) -> None:
    questions = reply["questions"]
    chosen = ", ".join(f"{part}: {questions[part] or 'none'}" for part in ("question", "answer", "facts"))
    say(f"{counted(reply['lines'], 'row')} ({questions['form']}); {chosen}")
    table = Table("row", *(escape(column) for column in questions["columns"]), box=None, pad_edge=False)
    for row in questions["rows"]:
        table.add_row(str(row["line"]), *map(plain, row["cells"]))
    results.print(table)
    if reply["problem"]:
        say(f"it cannot be imported like this: {reply['problem']}")
        return
    near = f"{questions['near_duplicates']} nearly the same as another, which are in one split"
    say(
        f"{counted(questions['different'], 'different question')}, {near}; "
        f"{counted(questions['answers'], 'different answer')}"
    )


def _print_conversations(reply: Json) -> None:
    conversations = reply["conversations"]
    forms = ", ".join(f"{count} {form}" for form, count in conversations["forms"].items())
    say(
        f"{counted(reply['lines'], 'line')}: {counted(conversations['conversations'], 'conversation')} ({forms}) of "
        f"{counted(conversations['users'], 'user')}, "
        f"{conversations['without_user']} without a user; {conversations['liked']} liked, "
        f"{conversations['disliked']} disliked, {conversations['unrated']} without a clear opinion"
    )
