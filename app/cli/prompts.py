"""`learnloop prompts`: texts that an agent brings to its model, stored and versioned."""

import difflib
import json
from pathlib import Path, PurePath
from typing import Annotated

import typer
import yaml

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, Service, ServiceAt, ServiceRefused
from learnloop_service.app.cli.options import AsJson
from learnloop_service.app.cli.terminal import Failure, print_deleted, print_list, print_result
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted

app = typer.Typer(no_args_is_help=True, help="Store, compare, list and delete prompts: the texts around a task.")

Name = Annotated[str, typer.Argument(help="Name of the prompt: letters, digits, '-' and '_'.")]
Version = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="A stored prompt; without version the newest.")]


@app.command()
def upload(
    name: Name,
    path: Annotated[
        Path,
        typer.Argument(
            exists=True,
            metavar="FILE|DIR",
            help="YAML or JSON with `parts`, or with the parts themselves; any other file is the system message. In a "
            "directory, each file is a part: system.txt, tool/search_inbox.txt, and others as files of the agent.",
        ),
    ],
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Store a prompt under a name. The same one again makes no new version."""
    stored = store(service, name, path)
    print_result(
        stored,
        as_json,
        f"stored {counted(stored['count'], 'part')} as {stored['name']}@{stored['version']}",
        f"compare it: learnloop eval --prompt - --prompt {stored['name']} --url {service.url}",
    )


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Option(help="Only versions of this name. \\[default: all]")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List the versions of stored prompts, newest first."""
    nothing = "No prompts are stored. Store one: learnloop prompts upload NAME FILE"
    columns = ("name", "version", "parts", "stored", "sha256")
    print_list(service.versions("prompts", name), as_json, nothing, columns, _row)


@app.command()
def show(
    prompt: Version,
    against: Annotated[
        str | None, typer.Option(metavar="NAME[@VERSION]", help="Show what differs from this prompt.")
    ] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Show the texts of a prompt, or what differs from another one."""
    parts = _parts(service, prompt)
    if against is None:
        print_result({"parts": parts}, as_json, *(line for name in parts for line in (f"== {name}", parts[name], "")))
        return
    other = _parts(service, against)
    changed = {
        name: list(difflib.unified_diff(_lines(other, name), _lines(parts, name), against, prompt, lineterm=""))
        for name in dict.fromkeys((*other, *parts))
        if other.get(name) != parts.get(name)
    }
    lines = [line for name, diff in changed.items() for line in (f"== {name}", *diff, "")]
    print_result({"changed": changed}, as_json, *(lines or ["They have the same texts."]))


@app.command()
def delete(
    name: Name,
    version: Annotated[int | None, typer.Option(min=1, help="Only this version. \\[default: all]")] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete stored prompts, and the other names of the same content. One that figures were made with stays."""
    print_deleted(service.delete_versions("prompts", name, version), as_json)


def store(service: Service, name: str, path: Path) -> Json:
    """Store the prompt in a file or directory, and return its version. Raises Failure."""
    try:
        return service.call("POST", "/prompts", params={"name": name}, json=read(path))
    except ServiceRefused as refused:
        raise ServiceRefused(refused.status, f"{path} was not stored: {refused}") from refused


def read(path: Path) -> dict[str, Json]:
    """Return the prompt in a file or directory, as `POST /prompts` takes it. Raises Failure."""
    try:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
            texts = {file.relative_to(path): file.read_text(encoding="utf-8-sig") for file in files}
            return {"parts": {part_of(file): text for file, text in texts.items()}}
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path} cannot be read: {error}") from error
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        return {"parts": {"system": text}}
    try:
        value = json.loads(text) if path.suffix.lower() == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise Failure(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise Failure(f"{path} has no parts; expected an object such as parts: {{system: You are ...}}")
    return value if "parts" in value else {"parts": value}


def part_of(file: PurePath) -> str:
    """Return the part that a file of a directory is: `system.txt` is `system`, `tool/search.txt` is `tool:search`, and
    any other is a file of the agent, such as `file:AGENTS.md`."""
    if file.parts[:-1] == ("tool",):
        return f"tool:{file.stem}"
    return "system" if file.parts[:-1] == () and file.stem == "system" else f"file:{file.as_posix()}"


def _parts(service: Service, prompt: str) -> dict[str, str]:
    """Return the texts of a stored prompt by part. Raises Failure."""
    name, _, version = prompt.partition("@")
    versions = service.versions("prompts", name)
    stored = next((row for row in versions if version in ("", str(row["version"]))), None)
    if stored is None:
        raise Failure(f"there is no prompt {prompt!r}; list them: learnloop prompts list")
    parts: dict[str, str] = service.call("GET", f"/prompts/{segment(stored['sha256'])}")["prompt"]["parts"]
    return parts


def _lines(parts: dict[str, str], name: str) -> list[str]:
    return parts.get(name, "").splitlines()


def _row(stored: Json) -> tuple[str, ...]:
    version, count = str(stored["version"]), str(stored["count"])
    return stored["name"], version, count, stored["created_at"][:10], stored["sha256"][:12]
