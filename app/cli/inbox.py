"""`learnloop inbox`: the inboxes in the data directory that the email agent searches."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.table import Table

from learnloop_service.app.cli.options import AsJson, DataDir
from learnloop_service.app.cli.serve import data_directory
from learnloop_service.app.cli.terminal import Failure, failing_on, print_json, results
from learnloop_service.environment.wording import counted

if TYPE_CHECKING:
    from learnloop_service.environment.base import Split
    from learnloop_service.environment.email_search.synthetic import World

MAX_WORLDS = 50

app = typer.Typer(no_args_is_help=True, help="Import, generate and inspect inboxes that the email agent can search.")

Name = Annotated[str, typer.Argument(help="Name of the inbox: letters, digits, '-' and '_'.")]


@app.command()
def make(
    name: Name,
    worlds: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_WORLDS, help="Number of invented companies; each adds about 17 emails and 1 question."
        ),
    ] = 10,
    seed: Annotated[int, typer.Option(min=0, max=999_999_999, help="The same seed generates the same emails.")] = 0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Generate an invented inbox with questions and answers, as an example of the format."""
    from learnloop_service.environment.email_search.environment import questions_path
    from learnloop_service.environment.email_search.inbox import InboxError, write_inbox

    path = path_of(name, data_dir)
    if path.exists():
        raise Failure(f"inbox {name!r} already exists; choose another name")
    companies = list(_distinct_worlds(seed, worlds))
    with failing_on(InboxError, OSError):
        emails = write_inbox(path, (mail for world in companies for mail in world.emails))
    questions = questions_path(path)
    with questions.open("w", encoding="utf-8") as lines:
        for world in companies:
            row = {"question": world.question, "answer": world.answer, "source_ids": [world.source_id]}
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
    if as_json:
        print_json(
            {"inbox": name, "path": str(path), "questions_path": str(questions), "emails": emails, "questions": worlds}
        )
        return
    results.print(f"{counted(emails, 'email')} in {path}")
    results.print(f"{counted(worlds, 'question')} in {questions}; the first: {companies[0].question}")


@app.command()
def stats(name: Name, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show how many emails, people and questions an inbox has, and check that the questions' sources exist."""
    from learnloop_service.environment.email_search.inbox import Inbox, InboxError

    path = path_of(name, data_dir)
    if not path.is_file():
        raise Failure(
            f"there is no inbox {name!r} in {path.parent}; import one with: learnloop inbox import {name} PATH"
        )
    with failing_on(InboxError):
        inbox = Inbox(path)
    figures = asdict(inbox.stats())
    inbox.close()
    sizes = question_sizes(name, path)
    if as_json:
        print_json({"inbox": name, "path": str(path), **figures, "questions": sizes})
        return
    formatted = {key: f"{value:%Y-%m-%d}" if hasattr(value, "year") else value for key, value in figures.items()}
    print_figures(formatted | question_figures(sizes))


def question_sizes(name: str, path: Path) -> "dict[Split, int] | None":
    """Return the number of questions in each split, or None if the inbox has no question file. Raises Failure if a
    question is not usable."""
    from learnloop_service.environment.email_search.environment import ImportedEmailSearch, questions_path
    from learnloop_service.environment.email_search.questions import split_sizes

    if not questions_path(path).is_file():
        return None
    with failing_on(ValueError), closing(ImportedEmailSearch(path, name)) as environment:
        return split_sizes(environment.questions)


def question_figures(sizes: "dict[Split, int] | None") -> dict[str, str]:
    """Return the number of questions for a table of figures."""
    if sizes is None:
        return {"questions": "none"}
    return {"questions": f"{sum(sizes.values())} ({', '.join(f'{size} {split}' for split, size in sizes.items())})"}


def path_of(name: str, data_dir: Path | None) -> Path:
    """Return the path of the inbox of that name. Raises Failure."""

    from learnloop_service.environment.email_search.environment import inbox_path

    with failing_on(ValueError):
        return inbox_path(data_directory(data_dir), name)


def _distinct_worlds(seed: int, worlds: int) -> "Iterator[World]":
    """Yield worlds whose emails share no id, so that they fit into one inbox. The first three questions cover the three
    splits, so that a run can learn from them."""
    from learnloop_service.environment.base import Split
    from learnloop_service.environment.email_search.synthetic import make_world
    from learnloop_service.environment.invented_names import split_of

    used_ids: set[str] = set()
    missing_splits: list[Split] = list(get_args(Split))[:worlds]
    yielded = 0
    for index in count():
        if yielded == worlds:
            return
        world = make_world("train", seed, index)
        ids, split = {mail.id for mail in world.emails}, split_of(world.question)
        if used_ids.isdisjoint(ids) and (split in missing_splits or not missing_splits):
            used_ids |= ids
            yielded += 1
            if missing_splits:
                missing_splits.remove(split)
            yield world


def print_figures(figures: dict[str, Any]) -> None:
    """Print figures by their labels."""
    table = Table.grid(padding=(0, 2))
    for label, value in figures.items():
        table.add_row(label, "-" if value is None else str(value))
    results.print(table)
