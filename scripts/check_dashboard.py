"""Checks the types in the comments of the dashboard's JavaScript and of the pages that plug-ins add to it, the
properties in its templates, that its modules can be joined, and the types published for clients.

    python -m scripts.check_dashboard

The TypeScript compiler is a native program, so Node is not needed. It is downloaded once from the npm registry, checked
against its hash and kept in the virtual environment. Where it cannot be downloaded, the types are not checked and a
message says so.
"""

import base64
import hashlib
import io
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import httpx

from learnloop_service.app.dashboard.bundle import CORE
from learnloop_service.app.dashboard.files import dashboard
from learnloop_service.app.http.typescript import client_types
from learnloop_service.app.main import create_app
from learnloop_service.app.settings import load_settings
from scripts.dashboard_elements import faults

VERSION = "7.0.2"
_SHA512 = {
    "linux-x64": "EYdf2cNg7rgCWJnxCdJ+F3V39O8ihb37eHAu1LK8oAFizgTQbPOK7zHHXbPt8rX24COqODXeI3sIf0fCXG7H/A==",
    "linux-arm64": "Qh4eU4/y3yDjnfjjyPYihMj5/ODIlmt+Bzu17OI+fiSRDW57QmU5SiN63exPRNJPKUzcc1INa1NXdrJ+MqHjUQ==",
    "darwin-arm64": "gowzar9MwS/aRWp6f3a4KUqzRjAZjOsmGNCM6LcTgXum+dBfgsBVMN+AgvOCCbguXyick6LJhpBszxMebJ8syA==",
}
"""Hash of the compiler's package for each platform, as stated by the registry."""
_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
_ROOT = Path(__file__).resolve().parent.parent
_PROJECT = _ROOT / "app" / "dashboard" / "static" / "tsconfig.json"
_ADDED = {file.parents[1].name: file for file in sorted(_ROOT.glob("plugins/*/*/dashboard/tsconfig.json"))}
"""Projects of the pages that plug-ins add, by package."""
_KEPT = Path(sys.prefix) / "share"


class CompilerUnavailable(Exception):
    """The compiler is not installed and cannot be downloaded."""


def compiler() -> Path:
    """Return the path of the compiler, downloading it if needed. Raises CompilerUnavailable."""
    folder = _KEPT / f"typescript-{VERSION}"
    if not (folder / "lib" / "tsc").exists():
        _fetch(folder)
    return folder / "lib" / "tsc"


def _fetch(folder: Path) -> None:
    name = f"{sys.platform}-{_MACHINES.get(platform.machine().lower(), platform.machine())}"
    if name not in _SHA512:
        raise CompilerUnavailable(f"there is none for {name}")
    package = f"typescript-{name}"
    try:
        url = f"https://registry.npmjs.org/@typescript/{package}/-/{package}-{VERSION}.tgz"
        tarball = httpx.get(url, timeout=120).raise_for_status().content
    except httpx.HTTPError as error:
        raise CompilerUnavailable(str(error)) from error
    if base64.b64encode(hashlib.sha512(tarball).digest()).decode() != _SHA512[name]:
        raise CompilerUnavailable(f"{url} is not the package that it was")
    unpacked = folder.with_suffix(".new")
    with tarfile.open(fileobj=io.BytesIO(tarball)) as archive:
        archive.extractall(unpacked, filter="data")
    (unpacked / "package").rename(folder)
    unpacked.rmdir()
    (folder / "lib" / "tsc").chmod(0o755)


def check_elements() -> None:
    """Exit with a message if templates and components do not agree on properties."""
    sources = {}
    for name, project in {CORE: _PROJECT, **_ADDED}.items():
        for path in project.parent.rglob("*.js"):
            if "vendor" not in path.parts:
                sources[f"{name}/{path.relative_to(project.parent).as_posix()}"] = path.read_text(encoding="utf-8")
    found = sorted(faults(sources))
    if found:
        sys.exit("\n".join(found))


def main() -> None:
    check_elements()
    try:
        tsc = str(compiler())
    except CompilerUnavailable as error:
        print(f"The dashboard's types were not checked: no TypeScript compiler ({error})")
        return
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "learnloop.ts"
        given.write_text(client_types(create_app(load_settings(_env_file=None, data_dir=Path("nowhere"))).openapi()))
        script = Path(folder) / "main.js"
        script.write_bytes(dashboard().files["main.js"].content)
        commands = (
            *([tsc, "--project", str(project)] for project in (_PROJECT, *_ADDED.values())),
            [tsc, "--strict", "--noEmit", str(given)],
            [tsc, "--allowJs", "--noEmit", "--target", "es2024", str(script)],
        )
        sys.exit(max(subprocess.run(command).returncode for command in commands))


if __name__ == "__main__":
    main()
