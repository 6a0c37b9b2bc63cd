"""`learnloop data`: prepared data, tasks for MCP servers, and files of one's own."""

import asyncio
import json
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from learnloop.operations import segment
from learnloop_service.app.cli import imports
from learnloop_service.app.cli.client import HERE, ServiceAt
from learnloop_service.app.cli.options import AsJson, DataDir, OnlyVersion
from learnloop_service.app.cli.serve import data_directory, settings_with
from learnloop_service.app.cli.stage_bar import stage_bar
from learnloop_service.app.cli.terminal import (
    Failure,
    failing_on,
    plain,
    print_deleted,
    print_json,
    print_list,
    results,
)
from learnloop_service.environment.wording import counted

if TYPE_CHECKING:
    from learnloop_service.app.datasets.store import DatasetStore, Version

app = typer.Typer(no_args_is_help=True, help="Prepare data that agents learn from, list and delete it.")
app.command("import")(imports.import_file)
_SHOWN_QUESTIONS = 3

Name = Annotated[str, typer.Argument(help="Name of the data: letters, digits, '-' and '_'.")]


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
        with stage_bar() as advance:
            written = asyncio.run(write(lambda finished: advance("tasks", finished, count)))
        path.write_text(json.dumps(written, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    results.print(plain(f"wrote {counted(len(written), 'task')} to {path}. Read them before you train on them."))


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the prepared data of the data directory: the newest version of each name."""
    from learnloop_service.app.datasets.store import StoreError

    store = _store(data_dir)
    with failing_on(StoreError):
        newest = [store.versions(name)[-1] for name in store.names()]
    nothing = "No data is prepared. Prepare some: learnloop data prepare NAME --emails PATH"
    columns = ("name", "version", "emails", "train", "validation", "test", "prepared")
    print_list([asdict(version) for version in newest], as_json, nothing, columns, _row)


@app.command()
def show(
    name: Name,
    version: Annotated[int | None, typer.Option(min=1, help="Which version. \\[default: the newest]")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a version of prepared data: what it was made from, what was left out, and some of its questions."""
    from learnloop_service.app.datasets.store import StoreError

    store = _store(data_dir)
    with failing_on(StoreError):
        versions = store.versions(name)
        matching = [stored for stored in versions if version in (None, stored.version)][-1:]
        if not matching:
            raise Failure(_missing(name, version, versions, store))
        chosen = matching[0]
        rows = store.scenarios(chosen.scenarios["sha256"]) if chosen.scenarios else []
    if as_json:
        print_json({**asdict(chosen), "versions": [stored.version for stored in versions]})
        return
    print_version(chosen)
    for row in rows[:_SHOWN_QUESTIONS]:
        results.print(plain(f"\n{row['question']}\n  {row['answer']}  ({row['split']})"))


@app.command()
def delete(
    name: Name,
    of_scenarios: Annotated[
        bool, typer.Option("--scenarios", help="Delete the set of scenarios of this name, not the inbox.")
    ] = False,
    version: OnlyVersion = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete an uploaded inbox, or uploaded scenarios, from a service: scenarios before the inbox that they are about.

    What a run or an evaluation still needs is not deleted. Prepared data stays in its data directory.
    """
    if of_scenarios:
        deleted = service.delete_versions("scenarios", name, version)
    else:
        inboxes = service.call("DELETE", f"/inboxes/{segment(name)}", params={"version": version})["deleted"]
        deleted = [f"{inbox['name']}@{inbox['version']}" for inbox in inboxes]
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


def print_version(version: "Version") -> None:
    """Print what a version of prepared data has, and what it was made from."""
    table = Table.grid(padding=(0, 2))
    table.add_row("name", f"{version.name}, version {version.version} of {version.created_at}")
    days = f", {version.inbox['first']} to {version.inbox['last']}" if version.inbox["first"] else ""
    table.add_row("inbox", f"{counted(version.inbox['emails'], 'email')}{days}")
    table.add_row("", version.inbox["sha256"])
    if version.scenarios:
        sizes = (f"{version.scenarios[split]} {split}" for split in ("train", "validation", "test"))
        table.add_row("questions", ", ".join(sizes))
        table.add_row("", version.scenarios["sha256"])
    for source, content in version.sources.items():
        table.add_row("source", plain(source))
        table.add_row("", content)
    for kind, counts in version.counts.items():
        listed = ", ".join(f"{key.replace('_', ' ')} {_figure(value)}" for key, value in counts.items())
        table.add_row(f"{kind} seen", listed or "-")
    results.print(table)


def _figure(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "unknown" if value is None else str(value)
