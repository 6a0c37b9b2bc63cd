"""`learnloop data`: inboxes and questions about them, prepared once and reused, tasks for MCP servers, and files
of one's own."""

import asyncio
import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from learnloop.operations import segment
from learnloop_service.app.cli import imports
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson, DataDir, config_file
from learnloop_service.app.cli.serve import data_directory, settings_with
from learnloop_service.app.cli.terminal import (
    Failure,
    failing_on,
    plain,
    print_deleted,
    print_json,
    print_list,
    progress,
    results,
)

if TYPE_CHECKING:
    from learnloop_service.app.datasets.prepare import Advance, Preparation, Prepared
    from learnloop_service.app.datasets.store import DatasetStore, Version
    from learnloop_service.app.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Prepare data that agents learn from, list and delete it.")
app.command("import")(imports.import_file)
_SHOWN_QUESTIONS = 3

Name = Annotated[str, typer.Argument(help="Name of the data: letters, digits, '-' and '_'.")]
_Count = Annotated[int | None, typer.Option(min=1)]


_OptionalName = Annotated[
    str | None,
    typer.Argument(help="Name of the data: letters, digits, '-' and '_'. \\[default: that of the file]"),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        parser=config_file,
        metavar="FILE",
        help="YAML file with these settings, such as `max_messages: 1`; flags override it.",
    ),
]
_Emails = Annotated[
    list[str] | None,
    typer.Option(
        help="mbox, Maildir or .eml files or folders; or a data set: a folder, a Parquet or JSON Lines file, or "
        "its id on the Hugging Face hub, such as corbt/enron-emails. Can be repeated."
    ),
]
_Questions = Annotated[
    str | None,
    typer.Option(
        help="templates, llm, none, or a data set such as corbt/enron_emails_sample_questions. \\[default: templates]"
    ),
]
_Inbox = Annotated[str | None, typer.Option(help="Only emails from or to this address, and questions about them.")]
_MaxEmails = Annotated[int | None, typer.Option(min=1, help="Maximum number of emails.")]
_MaxBodyCharacters = Annotated[int | None, typer.Option(min=1, help="Leave longer emails out.")]
_MaxRecipients = Annotated[int | None, typer.Option(min=1, help="Leave emails to more people out.")]
_DropCopies = Annotated[
    bool | None, typer.Option("--drop-copies", help="Keep one of emails with the same sender, subject and body.")
]
_MaxMessages = Annotated[
    int | None, typer.Option(min=1, help="Leave out questions that need more emails. \\[default: 1]")
]
_ExcludeQuestions = Annotated[
    list[int] | None,
    typer.Option(help="Leave out the question with this id. Can be repeated. \\[default: ART-E's known bad ones]"),
]
_MinRealism = Annotated[
    float | None, typer.Option(min=0, max=1, help="Leave out questions that are rated less realistic.")
]
_Limit = Annotated[int | None, typer.Option(min=1, help="Maximum number of training questions.")]
_HeldOutLimit = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of questions for validation, and for test.")
]
_ShuffleSeed = Annotated[
    int | None, typer.Option(min=0, help="Shuffle the questions. \\[default: the order of the source]")
]
_QuestionCount = Annotated[int | None, typer.Option(min=3, help="Number of questions to make. \\[default: 300]")]
_QuestionSeed = Annotated[int | None, typer.Option(min=0, help="Decides which emails they are about. \\[default: 0]")]
_QuestionModel = Annotated[
    str | None,
    typer.Option(help="Writes them: a listed model or PROVIDER/MODEL. \\[default: the first listed]"),
]


@app.command()
def prepare(
    name: _OptionalName = None,
    config: _Config = None,
    emails: _Emails = None,
    questions: _Questions = None,
    inbox: _Inbox = None,
    max_emails: _MaxEmails = None,
    max_body_characters: _MaxBodyCharacters = None,
    max_recipients: _MaxRecipients = None,
    drop_copies: _DropCopies = None,
    max_messages: _MaxMessages = None,
    exclude_questions: _ExcludeQuestions = None,
    min_realism: _MinRealism = None,
    limit: _Limit = None,
    held_out_limit: _HeldOutLimit = None,
    shuffle_seed: _ShuffleSeed = None,
    question_count: _QuestionCount = None,
    question_seed: _QuestionSeed = None,
    question_model: _QuestionModel = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Build an inbox and questions about it, once: what was made of the same inputs before is used again."""
    from learnloop_service.app.datasets.recipe import BadRecipe, read_recipe

    given = dict(locals())
    flags = {key: given[key] for key in _RECIPE_FLAGS}
    with failing_on(BadRecipe):
        recipe = read_recipe(config, flags)
    _report(prepared(recipe, settings_with(data_dir=data_dir)), as_json)


def prepared(recipe: Any, settings: "Settings") -> "Prepared":
    """Prepare the data of a recipe, with a progress bar. Raises Failure."""
    with _bar() as advance, _data_failures():
        return _preparation(recipe, settings, advance).run()


_RECIPE_FLAGS = (
    "name", "emails", "questions", "inbox", "max_emails", "max_body_characters", "max_recipients", "drop_copies",
    "max_messages", "exclude_questions", "min_realism", "limit", "held_out_limit", "shuffle_seed", "question_count",
    "question_seed", "question_model",
)  # fmt: skip


@app.command()
def tasks(
    path: Annotated[Path, typer.Argument(help="JSON file to write, with scenarios for POST /scenarios.")],
    command: Annotated[
        str | None, typer.Option(help="Command that starts the MCP server, such as 'uvx mcp-server-time'.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="URL of the MCP server, if it is not started by a command.")] = None,
    count: Annotated[int, typer.Option(min=3, max=1_000, help="Maximum number of tasks.")] = 60,
    model: Annotated[
        str | None,
        typer.Option(help="Writes them: a listed model or PROVIDER/MODEL. \\[default: the first listed]"),
    ] = None,
) -> None:
    """Have a language model write tasks for the tools of an MCP server, for the environment mcp."""
    import httpx

    from learnloop_service.app.datasets.model_writer import NotWritten
    from learnloop_service.app.datasets.task_writer import write_tasks
    from learnloop_service.app.listed_models import ListedModels
    from learnloop_service.app.runs.environment_access import EnvironmentAccess
    from learnloop_service.environment.base import EpisodeFailed
    from learnloop_service.environment.mcp.config import HttpServer, StdioServer
    from learnloop_service.environment.mcp.session import tools_of
    from learnloop_service.judges.base import UnknownModel

    if (command is None) == (url is None):
        raise Failure("give either --command or --url")
    # The caller chose this command or URL, and could use it without us.
    hosts = None if url is None else [httpx.URL(url).host]
    settings = settings_with(environment_commands=command and [command], environment_hosts=hosts)
    with failing_on(UnknownModel):
        writer = ListedModels(settings).model(model)
    server = HttpServer(url) if url is not None else StdioServer(tuple(shlex.split(command or "")))

    async def write(advance: Callable[[int], None]) -> list[dict[str, Any]]:
        return await write_tasks(writer, await tools_of(server, EnvironmentAccess(settings)), count, advance)

    with failing_on(EpisodeFailed, NotWritten, OSError):
        with _bar() as advance:
            written = asyncio.run(write(lambda done: advance("tasks", done, count)))
        path.write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    results.print(plain(f"{len(written)} tasks are in {path}. Read them before you train on them."))


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the prepared data of the data directory: the newest version of each name."""
    store = _store(data_dir)
    with _data_failures():
        newest = [store.versions(name)[-1] for name in store.names()]
    nothing = "No data is prepared. Prepare some: learnloop data prepare NAME --emails PATH"
    columns = ("name", "version", "emails", "train", "validation", "test", "prepared")
    print_list([asdict(each) for each in newest], as_json, nothing, columns, _row)


@app.command()
def show(
    name: Name,
    version: Annotated[int | None, typer.Option(min=1, help="Which version. \\[default: the newest]")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a version of prepared data: what it was made from, what was left out, and some of its questions."""
    store = _store(data_dir)
    with _data_failures():
        versions = store.versions(name)
        found = [each for each in versions if version in (None, each.version)][-1:]
        if not found:
            raise Failure(_missing(name, version, versions, store))
        shown = found[0]
        rows = store.scenarios(shown.scenarios["sha256"]) if shown.scenarios else []
    if as_json:
        print_json({**asdict(shown), "versions": [each.version for each in versions]})
        return
    _print_version(shown)
    for row in rows[:_SHOWN_QUESTIONS]:
        results.print(plain(f"\n{row['question']}\n  {row['answer']}  ({row['split']})"))


@app.command()
def delete(
    name: Name,
    of_scenarios: Annotated[
        bool, typer.Option("--scenarios", help="Delete the set of scenarios of this name, not the inbox.")
    ] = False,
    version: Annotated[int | None, typer.Option(min=1, help="Only this version. \\[default: all]")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete an uploaded inbox, or uploaded scenarios, from a service: scenarios before the inbox that they are about.

    What a run or an evaluation still needs is not deleted. Prepared data stays in its data directory.
    """
    if of_scenarios:
        deleted = service.delete_versions("scenarios", name, version)
    else:
        found = service.call("DELETE", f"/inboxes/{segment(name)}", params={"version": version})["deleted"]
        deleted = [f"{each['name']}@{each['version']}" for each in found]
    print_deleted(deleted, as_json)


def _row(version: dict[str, Any]) -> tuple[str, ...]:
    splits, emails = version["scenarios"], str(version["inbox"]["emails"])
    sizes = (str(splits[split]) if splits else "-" for split in ("train", "validation", "test"))
    return version["name"], str(version["version"]), emails, *sizes, version["created_at"][:10]


def _missing(name: str, version: int | None, versions: "list[Version]", store: "DatasetStore") -> str:
    if versions:
        return f"{name} has no version {version}; the newest is {versions[-1].version}"
    return f"no prepared data {name!r} in {store.folder}; prepare it with: learnloop data prepare {name} --emails PATH"


def _store(data_dir: Path | None) -> "DatasetStore":
    from learnloop_service.app.datasets.store import DatasetStore

    return DatasetStore(data_directory(data_dir))


def _preparation(recipe: Any, settings: "Settings", advance: "Advance") -> "Preparation":
    from learnloop_service.app.datasets.prepare import Hub, Preparation
    from learnloop_service.app.datasets.question_writer import QuestionWriter
    from learnloop_service.app.datasets.store import DatasetStore
    from learnloop_service.app.listed_models import ListedModels

    store = DatasetStore(settings.data_dir)
    token = settings.hf_token.get_secret_value() if settings.hf_token else None
    hub = Hub(str(settings.hf_endpoint).rstrip("/"), token, store.folder / "hub")
    writer = QuestionWriter(ListedModels(settings), store.folder / "written")
    return Preparation(recipe, store, hub, writer.write, advance)


@contextmanager
def _data_failures() -> Iterator[None]:
    """Turn expected errors into a Failure."""
    from learnloop_service.app.datasets.hub import HubError
    from learnloop_service.app.datasets.model_writer import NotWritten
    from learnloop_service.app.datasets.recipe import BadRecipe
    from learnloop_service.app.datasets.store import StoreError
    from learnloop_service.environment.email_search.importer import MailSourceError
    from learnloop_service.environment.email_search.inbox import InboxError
    from learnloop_service.environment.email_search.table_files import DatasetError

    try:
        yield
    except (BadRecipe, DatasetError, HubError, InboxError, MailSourceError, NotWritten, StoreError) as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Failure(f"cannot write the data: {error}") from error


@contextmanager
def _bar() -> "Iterator[Advance]":
    """Show a progress bar on a terminal, and nothing elsewhere."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal) as bar:
        stages: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int | None) -> None:
            if stage not in stages:
                stages[stage] = bar.add_task(stage, total=total)
            bar.update(stages[stage], completed=done)

        yield advance


def _report(prepared: "Prepared", as_json: bool) -> None:
    if as_json:
        print_json({**asdict(prepared.version), "done": list(prepared.done)})
        return
    _print_version(prepared.version)
    done = " and ".join(prepared.done)
    results.print(f"\nMade: {done}." if done else "\nNothing to do: the same inputs were prepared before.")


def _print_version(shown: "Version") -> None:
    table = Table.grid(padding=(0, 2))
    table.add_row("name", f"{shown.name}, version {shown.version} of {shown.created_at}")
    days = f", {shown.inbox['first']} to {shown.inbox['last']}" if shown.inbox["first"] else ""
    table.add_row("inbox", f"{shown.inbox['emails']} emails{days}")
    table.add_row("", shown.inbox["sha256"])
    if shown.scenarios:
        sizes = (f"{shown.scenarios[split]} {split}" for split in ("train", "validation", "test"))
        table.add_row("questions", ", ".join(sizes))
        table.add_row("", shown.scenarios["sha256"])
    for source, content in shown.sources.items():
        table.add_row("source", plain(source))
        table.add_row("", content)
    for kind, counts in shown.counts.items():
        listed = ", ".join(f"{key.replace('_', ' ')} {_figure(value)}" for key, value in counts.items())
        table.add_row(f"{kind} seen", listed or "-")
    results.print(table)


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "unknown" if value is None else str(value)
