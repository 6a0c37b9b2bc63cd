"""`learnloop new`: writes a package, or an agent, to start from."""

import keyword
import re
from collections.abc import Mapping
from enum import StrEnum
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from learnloop_service.app.cli.terminal import Failure, results

app = typer.Typer(no_args_is_help=True)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_TEMPLATES = files("learnloop_service.app.cli") / "templates"
ENVIRONMENT = {
    "pyproject.toml": "environment/pyproject.toml.txt",
    "README.md": "environment/README.md.txt",
    "{name}/environment.py": "environment/environment.py.txt",
    "tests/test_environment.py": "environment/test_environment.py.txt",
}
"""Paths of the package's files, each with its template."""
BACKEND = {
    "pyproject.toml": "backend/pyproject.toml.txt",
    "README.md": "backend/README.md.txt",
    "{name}/backend.py": "backend/backend.py.txt",
    "tests/test_backend.py": "backend/test_backend.py.txt",
}
"""Paths of a backend's files, each with its template."""
_AGENT = {
    "README.md": "agent/README.md.txt",
    "agent.py": "agent/{sdk}.py.txt",
    "reward.py": "agent/reward.py.txt",
    "mail.py": "agent/mail.py.txt",
    "inbox.json": "agent/inbox.json",
    "main.py": "agent/main.py.txt",
    "run.yaml": "agent/run.yaml.txt",
    "requirements.txt": "agent/requirements.txt",
    ".gitignore": "agent/gitignore.txt",
}
"""Paths of an agent's files, each with its template."""


class Sdk(StrEnum):
    """The package that an agent is written with."""

    OPENAI = "openai"
    OPENAI_AGENTS = "openai-agents"
    LANGGRAPH = "langgraph"
    PYDANTIC_AI = "pydantic-ai"

    @property
    def requirements(self) -> str:
        """The lines of its requirements.txt."""
        return {
            Sdk.OPENAI: "openai>=2",
            Sdk.OPENAI_AGENTS: "openai-agents>=0.20",
            Sdk.LANGGRAPH: "langchain>=1\nlangchain-openai>=1",
            Sdk.PYDANTIC_AI: "pydantic-ai-slim[openai]>=1",
        }[self]


_Name = Annotated[str, typer.Argument(metavar="NAME", help="Lowercase letters, digits and underscores.")]
_Path = Annotated[Path, typer.Option(file_okay=False, help="Folder to write into; NAME gets a folder in it.")]


@app.callback()
def new() -> None:
    """Write a package or an agent of your own to begin with."""


@app.command()
def environment(name: _Name, path: _Path = Path()) -> None:
    """Write an environment as a package of its own, with tests that pass."""
    folder = _write_package(path, name, ENVIRONMENT)
    results.print(
        f"\nNow: cd {folder} && pytest && pip install --editable . && learnloop check environment {name}",
        soft_wrap=True,
    )


@app.command()
def backend(name: _Name, path: _Path = Path()) -> None:
    """Write a backend as a package of its own, with tests that pass."""
    folder = _write_package(path, name, BACKEND)
    results.print(
        f"\nNow: cd {folder} && pytest && pip install --editable . && learnloop check backend {name}"
        " (docs/backends.md says what each part must do)",
        soft_wrap=True,
    )


@app.command()
def agent(
    name: _Name,
    sdk: Annotated[Sdk, typer.Option(help="The package that the agent is written with.")] = Sdk.OPENAI,
    path: _Path = Path(),
) -> None:
    """Write an agent of your own with thirty tasks, a reward in one file, and a run that trains it."""
    _check_form(name)
    folder = _write(path / name, rendered(_AGENT, name, sdk))
    results.print(f"\nNow follow {folder / 'README.md'}: install the agent, start it, and train it.", soft_wrap=True)


def rendered(templates: Mapping[str, str], name: str, sdk: Sdk = Sdk.OPENAI) -> dict[str, str]:
    """Return the text of each file by its path."""
    names = {
        "name": name,
        "variable": name.upper(),
        "distribution": name.replace("_", "-"),
        "sdk": sdk,
        "requirements": sdk.requirements,
    }
    read = {path: _TEMPLATES / template.format(sdk=sdk.replace("-", "_")) for path, template in templates.items()}
    return {
        path.format(name=name): Template(template.read_text(encoding="utf-8")).substitute(names)
        for path, template in read.items()
    }


def _write_package(path: Path, name: str, templates: Mapping[str, str]) -> Path:
    """Write a package of that name, and return its folder. Raises Failure."""
    _check_name(name)
    return _write(path / name, {**rendered(templates, name), f"{name}/__init__.py": ""})


def _write(folder: Path, texts: Mapping[str, str]) -> Path:
    """Write the files into a new folder and return it. Raises Failure."""
    if folder.exists():
        raise Failure(f"{folder} exists already; choose another name or --path")
    for file, text in texts.items():
        target = folder / file
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Failure(f"cannot write {target}: {error.strerror}") from error
        results.print(str(target), soft_wrap=True)
    return folder


def _check_form(name: str) -> None:
    """Raise Failure if the name is not that of a module."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise Failure(
            f"{name!r} cannot be a package: use up to 50 lowercase letters, digits and underscores, a letter first"
        )


def _check_name(name: str) -> None:
    """Raise Failure if the name cannot be that of a new module."""
    _check_form(name)
    if find_spec(name) is not None:
        raise Failure(f"a module named {name!r} is installed already; choose another name")
