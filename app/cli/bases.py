"""`learnloop bases`: base models in the data directory, for runs on the embedded backend."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from app.cli.options import AsJson, DataDir
from app.cli.serve import data_directory
from app.cli.terminal import Failure, print_json, progress, results
from training.base_model_files import added_base_models, base_model_fault, data_dir_of, place_of_added
from training.base_verdicts import BaseVerdicts

app = typer.Typer(
    no_args_is_help=True, help="Add base models that others made to the data directory, list and remove them."
)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
Name = Annotated[str, typer.Argument(help="Name of the base model: lower-case letters, digits and ._-")]


@dataclass(frozen=True, slots=True)
class _AddedBase:
    """An added base model and the directory with its files."""

    name: str
    place: Path

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(path.stat().st_size for path in self.place.iterdir())

    def described(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": str(self.place),
            "bytes": self.size,
            "fault": self.fault,
        }

    @property
    def fault(self) -> str | None:
        """Why it cannot be used, or None."""
        return BaseVerdicts(data_dir_of(self.place)).fault(self.place) or base_model_fault(self.place)


@app.command()
def add(
    name: Name,
    source: Annotated[
        Path | None,
        typer.Argument(
            help="A GGUF file, or a directory in Hugging Face layout. \\[default: of smollm2, the installed package]",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add a base model: a Hugging Face directory is copied, a GGUF file unpacked and converted.

    It is loaded first, and a conversation rendered, in a process with limits. Runs can use it immediately, as
    `"model": {"base_model": NAME}`; a running service needs no restart.
    """
    if not _NAME.fullmatch(name):
        raise Failure(f"{name!r} is no name for a base model: use lower-case letters, digits and ._-, at most 64")
    place = place_of_added(data_directory(data_dir), name)
    with progress.status(f"adding {name}"):
        from training.engine.registry import base_model_import

        try:
            base_model_import.add(source or base_model_import.packaged(name), place)
        except base_model_import.CannotAdd as error:
            raise Failure(str(error)) from error
    if as_json:
        print_json(_AddedBase(name, place).described())
    else:
        results.print(f"{name} is a base model now, in {place}", soft_wrap=True)


@app.command("list")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the base models that were added, and what is wrong with them."""
    found = [_AddedBase(name, place) for name, place in added_base_models(data_directory(data_dir)).items()]
    if as_json:
        print_json([each.described() for each in found])
        return
    if not found:
        results.print("None was added. Add one: learnloop bases add NAME SOURCE")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("NAME", "SIZE", "STATE"):
        table.add_column(heading, overflow="fold")
    for each in found:
        table.add_row(each.name, f"{each.size / 1e6:,.0f} MB", each.fault or "ok")
    results.print(table)


@app.command()
def remove(name: Name, data_dir: DataDir = None) -> None:
    """Remove a base model that was added. Models that train all weights have their own copy; LoRAs need it back."""
    place = added_base_models(data_directory(data_dir)).get(name)
    if place is None:
        raise Failure(f"no base model {name!r} was added to this data directory")
    shutil.rmtree(place)
    results.print(f"{name} is removed")
