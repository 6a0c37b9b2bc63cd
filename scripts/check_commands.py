"""Compares the commands in the documentation with those that exist: python -m scripts.check_commands

Reads the pages for users, AGENTS.md and the skills for coding agents. Whatever begins with `learnloop`, `make` or
`python -m` there, as a line of code or in backquotes, must be a command, a target of the Makefile or a module, and each
`--option` one of that command. Prints what is not, and exits with 1.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from learnloop_service.app.cli.main import app

_PAGES = ("AGENTS.md", "README.md", "CONTRIBUTING.md", "docs/*.md", "docs/guides/*.md", "docs/skills/*/SKILL.md")
_FENCED = re.compile(r"^( *)```.*?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^ {4,}(.*)$", re.MULTILINE)
_QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_ENDS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "--", "\\"}
"""Words after which a command's own ones have ended."""
_INVENTED = {"greet"}
"""Commands of packages that a page describes."""
_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)


def written(page: str) -> Iterator[list[str]]:
    """Yield the words of each command on a page, without the variables and the prompt before it."""
    pieces = [line for _, block in _FENCED.findall(page) for line in block.replace("\\\n", " ").splitlines()]
    prose = _FENCED.sub("", page)
    pieces += [*_INDENTED.findall(prose), *_QUOTED.findall(prose)]
    for piece in pieces:
        try:
            words = shlex.split(piece.removeprefix("$ "), comments=True)
        except ValueError:  # a piece of a longer command, or no command
            words = piece.split()
        while words and _ASSIGNMENT.match(words[0]):
            words.pop(0)
        end = next((at for at, word in enumerate(words) if word in _ENDS), len(words))
        if words[:end]:
            yield words[:end]


def fault(words: list[str], targets: set[str]) -> str | None:
    """Say what is wrong with a command, None if nothing is, or if it is no command of ours."""
    match words:
        case ["learnloop", *rest]:
            return _wrong_in(typer.main.get_command(app), rest)
        case ["make", target, *_] if re.fullmatch(r"[a-z-]+", target) and target not in targets:
            return f"the Makefile has no target {target}"
        case ["python" | "python3", "-m", module, *_] if module.startswith(("scripts.", "benchmarks.")):
            return None if _is_module(module) else f"there is no module {module}"
    return None


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _wrong_in(command: Any, words: list[str]) -> str | None:
    """Follow the words to a command, and compare its options."""
    path = "learnloop"
    while words and (below := getattr(command, "commands", None)) and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        if words[0] in _INVENTED:
            return None
        if words[0] not in below:
            return f"`{path}` has no command {words[0]}"
        command, path, words = below[words[0]], f"{path} {words[0]}", words[1:]
    # A group that is given something else than a command passes it on to one of its commands.
    among = (command, *getattr(command, "commands", {}).values())
    parameters = [parameter for member in among for parameter in member.params]
    options = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in options]
    if unknown and not command.context_settings.get("ignore_unknown_options"):
        return f"`{path}` has no option {unknown[0]}"
    return None


def main() -> None:
    targets = set(_TARGET.findall(Path("Makefile").read_text(encoding="utf-8")))
    pages = [path for pattern in _PAGES for path in sorted(Path().glob(pattern))]
    faults = [
        f"{path}: `{' '.join(words)}`: {wrong}"
        for path in pages
        for words in written(path.read_text(encoding="utf-8"))
        if (wrong := fault(words, targets))
    ]
    print(*faults, sep="\n", end="\n" if faults else "")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
