"""Checks the formatting of all JavaScript that is written here: Biome's, with lines of at most 120 columns.

    python -m scripts.check_javascript [--write]

`--write` formats the files first. Biome leaves comments and templates alone, so their lines are counted here. Where
Biome cannot be downloaded, a message says so, and only the lines are counted.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.npm_programs import BIOME, ProgramUnavailable

_ROOT = Path(__file__).resolve().parent.parent
_FOLDERS = ("app", "plugins", "tests")
_GENERATED = "api_fields.js"
"""Written by scripts/dashboard_types.py, with a line for each text."""
COLUMNS = 120


def written_here(root: Path) -> Iterator[Path]:
    """Return the JavaScript files below `root` that are neither vendored, minified nor generated."""
    for folder in _FOLDERS:
        for path in sorted((root / folder).rglob("*.js")):
            if "vendor" not in path.parts and not path.name.endswith(".min.js") and path.name != _GENERATED:
                yield path


def long_lines(root: Path) -> list[str]:
    """Return a message for each line of more than 120 columns."""
    return [
        f"{path.relative_to(root)}:{number}: {len(line)} columns, of {COLUMNS}"
        for path in written_here(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > COLUMNS
    ]


def main() -> None:
    try:
        command = [str(BIOME.installed()), "format", *(["--write"] if "--write" in sys.argv else []), "."]
    except ProgramUnavailable as error:
        print(f"The formatting of JavaScript was not checked: no Biome ({error})")
        failed = False
    else:
        failed = subprocess.run(command, cwd=_ROOT).returncode != 0
    faults = long_lines(_ROOT)
    print(*faults, sep="\n", file=sys.stderr)
    sys.exit(failed or bool(faults))


if __name__ == "__main__":
    main()
