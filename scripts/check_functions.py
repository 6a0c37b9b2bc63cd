"""Finds functions that are too long to be read at one glance: python -m scripts.check_functions

Prints each with its number of lines, and exits with 1 if there is one. Kernels and migrations can be longer.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_LINES = 50
FOLDERS = ("app", "environment", "judges", "learnloop", "plugins", "scripts", "training")
LONGER: dict[str, str] = {}
"""Functions that may be longer, by file and name, with the reason: code that is a table."""


def too_long(files: Iterable[Path], allowed: Iterable[str] = ()) -> Iterator[str]:
    """Yield the functions with more than `MAX_LINES` lines, and the allowed names that no such function has."""
    unused = set(allowed)
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                name = f"{file.as_posix()}:{node.name}"
                if lines > MAX_LINES and name not in allowed:
                    yield f"{name} has {lines} lines, more than {MAX_LINES}"
                elif lines > MAX_LINES:
                    unused.discard(name)
    yield from (f"{name} is not longer than {MAX_LINES} lines: it needs no exception" for name in sorted(unused))


if __name__ == "__main__":
    kernels = "*_kernels.py"
    files = [file for folder in FOLDERS for file in Path(folder).rglob("*.py") if not file.match(kernels)]
    sys.exit("\n".join(too_long(sorted(files), LONGER)) or 0)
