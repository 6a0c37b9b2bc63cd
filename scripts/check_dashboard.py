"""Checks the types in the comments of the dashboard's JavaScript and of the pages that plug-ins add to it, the
properties in its templates, that its modules can be joined, and the types published for clients.

    python -m scripts.check_dashboard

Where the TypeScript compiler cannot be downloaded, the types are not checked and a message says so.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from learnloop_service.app.dashboard.bundle import CORE
from learnloop_service.app.dashboard.files import dashboard
from learnloop_service.app.http.typescript import client_types
from learnloop_service.app.main import create_app
from learnloop_service.app.settings import load_settings
from scripts.dashboard_elements import faults
from scripts.dashboard_types import TYPES, files
from scripts.npm_programs import TYPESCRIPT, ProgramUnavailable

_ROOT = Path(__file__).resolve().parent.parent
_PROJECT = _ROOT / "app" / "dashboard" / "static" / "tsconfig.json"
_ADDED = {file.parents[1].name: file for file in sorted(_ROOT.glob("plugins/*/*/dashboard/tsconfig.json"))}
"""Projects of the pages that plug-ins add, by package."""


def check_elements() -> None:
    """Exit with a message if templates and components do not agree on properties."""
    sources = {}
    for name, project in {CORE: _PROJECT, **_ADDED}.items():
        for path in project.parent.rglob("*.js"):
            if "vendor" not in path.parts:
                sources[f"{name}/{path.relative_to(project.parent).as_posix()}"] = path.read_text(encoding="utf-8")
    messages = sorted(faults(sources))
    if messages:
        sys.exit("\n".join(messages))


def main() -> None:
    check_elements()
    try:
        tsc = str(TYPESCRIPT.installed())
    except ProgramUnavailable as error:
        print(f"The dashboard's types were not checked: no TypeScript compiler ({error})")
        return
    api = create_app(load_settings(_env_file=None, data_dir=Path("nowhere"))).openapi()
    (_PROJECT.parent / TYPES).write_text(files(api)[TYPES], encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        client_module = Path(folder) / "learnloop.ts"
        client_module.write_text(client_types(api))
        scripts = [Path(folder) / name for name in ("main.js", "others.js")]
        for script in scripts:
            script.write_bytes(dashboard().files[script.name].content)
        commands = (
            *([tsc, "--project", str(project)] for project in (_PROJECT, *_ADDED.values())),
            [tsc, "--strict", "--noEmit", str(client_module)],
            [tsc, "--allowJs", "--noEmit", "--target", "es2024", *map(str, scripts)],
        )
        sys.exit(max(subprocess.run(command).returncode for command in commands))


if __name__ == "__main__":
    main()
