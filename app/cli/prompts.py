"""`learnloop prompts`: texts that an agent brings to its model, stored and versioned."""

import difflib
import json
from pathlib import Path, PurePath
from typing import Annotated

import typer
import yaml

from learnloop.operations import segment
from learnloop_service.app.cli.client import HERE, Service, ServiceAt, ServiceRefused
from learnloop_service.app.cli.options import AsJson, OfName, OnlyVersion
from learnloop_service.app.cli.run_names import run_named
from learnloop_service.app.cli.terminal import Failure, print_deleted, print_result, print_versions
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
    parent: Annotated[
        str | None,
        typer.Option(metavar="NAME[@VERSION]", help="The prompt that it was made from. It replaces the same texts."),
    ] = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Store a prompt under a name. The same one again makes no new version."""
    stored = store(service, name, path, parent)
    print_result(
        stored,
        as_json,
        f"stored {counted(stored['count'], 'part')} as {stored['name']}@{stored['version']}",
        f"compare it: learnloop eval --prompt - --prompt {stored['name']} --url {service.url}",
    )


@app.command()
def find(
    name: Name,
    id: Annotated[str, typer.Argument(metavar="EVALUATION|RUN", help="Whose requests are compared.")],
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Store the texts that an agent itself brings to its model, as a prompt that replaces them."""
    evaluation = service.call("GET", f"/evaluations/{segment(id)}", accept=(404,))
    subject = {"evaluation": id} if "evaluation_id" in evaluation else {"run": run_named(service, id)}
    common = service.call("POST", "/prompts/found", params={"name": name} | subject)
    stored = f"{common['name']}@{common['version']}"
    print_result(
        common,
        as_json,
        f"stored {counted(common['count'], 'part')} as {stored}: what {common['requests']} different requests share",
        *(f"not in it: {part}: {why}" for part, why in common["omitted"].items()),
        f"change it: learnloop prompts show {stored}; learnloop prompts upload {name} FILE --parent {stored}",
    )


@app.command("list")
def list_(
    name: OfName = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """List the versions of stored prompts, newest first."""
    nothing = "No prompts are stored. Store one: learnloop prompts upload NAME FILE"
    print_versions(service.versions("prompts", name), as_json, nothing, "parts")


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
    texts = _texts(service, prompt)
    parts = texts["parts"]
    if against is None:
        print_result(texts, as_json, *(line for name in parts for line in (f"== {name}", parts[name], "")))
        return
    other = _texts(service, against)["parts"]
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
    version: OnlyVersion = None,
    service: ServiceAt = HERE,
    as_json: AsJson = False,
) -> None:
    """Delete stored prompts, and the other names of the same content. One that figures were made with stays."""
    print_deleted(service.delete_versions("prompts", name, version), as_json)


def store(service: Service, name: str, path: Path, parent: str | None = None) -> Json:
    """Store the prompt in a file or directory, and return its version. Raises Failure."""
    try:
        return service.call("POST", "/prompts", params={"name": name, "parent": parent}, json=read(path))
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


def _texts(service: Service, prompt: str) -> dict[str, dict[str, str]]:
    """Return the parts of a stored prompt, and what they replace. Raises Failure."""
    name, _, version = prompt.partition("@")
    versions = service.versions("prompts", name)
    stored = next((row for row in versions if version in ("", str(row["version"]))), None)
    if stored is None:
        raise Failure(f"there is no prompt {prompt!r}; list them: learnloop prompts list")
    texts: dict[str, dict[str, str]] = service.call("GET", f"/prompts/{segment(stored['sha256'])}")["prompt"]
    return texts


def _lines(parts: dict[str, str], name: str) -> list[str]:
    return parts.get(name, "").splitlines()
