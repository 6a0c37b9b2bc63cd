"""`learnloop new`: writes a package to start from."""

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from app.cli.terminal import Failure, results

app = typer.Typer(no_args_is_help=True)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_TEMPLATES = files("app.cli") / "templates" / "environment"
_FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "{name}/environment.py": "environment.py.txt",
    "tests/test_environment.py": "test_environment.py.txt",
}
"""Paths of the package's files, each with its template."""


@app.callback()
def new() -> None:
    """Write a package of your own to begin with."""


@app.command()
def environment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lowercase letters, digits and underscores.")],
    path: Annotated[
        Path, typer.Option(file_okay=False, help="Folder to write into; the package gets a folder NAME in it.")
    ] = Path(),
) -> None:
    """Write an environment as a package of its own, with tests that pass."""
    _check_name(name)
    folder = path / name
    if folder.exists():
        raise Failure(f"{folder} exists already; choose another name or --path")
    for file, text in rendered(name).items():
        target = folder / file
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Failure(f"cannot write {target}: {error.strerror}") from error
        results.print(str(target), soft_wrap=True)
    results.print(
        f"\nNow: cd {folder} && pytest && pip install --editable . && learnloop check environment {name}",
        soft_wrap=True,
    )


def rendered(name: str) -> dict[str, str]:
    """Return the text of each file of the package by its path."""
    names = {"name": name, "distribution": name.replace("_", "-")}
    texts = {
        path.format(name=name): Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(names)
        for path, template in _FILES.items()
    }
    return {**texts, f"{name}/__init__.py": ""}


def _check_name(name: str) -> None:
    """Raise Failure if the name cannot be that of a new module."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise Failure(
            f"{name!r} cannot be a package: use up to 50 lowercase letters, digits and underscores, a letter first"
        )
    if find_spec(name) is not None:
        raise Failure(f"a module named {name!r} is installed already; choose another name")
