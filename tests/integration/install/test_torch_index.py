"""`scripts/install.py` takes PyTorch from the index of CPU builds rather than from the usual one.

Both are servers of the simple index protocol with a wheel each; the project and its client are stand-ins that are built
without anything from an index.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from zipfile import ZipFile

import pytest

from tests.fakes.engine_process import ROOT

pytestmark = pytest.mark.long
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["{root}"]

[project]
name = "{name}"
version = "0.1.0"
dependencies = {requires}
"""
BACKEND = '''
"""Builds wheels that have metadata only."""
from pathlib import Path
from tomllib import loads
from zipfile import ZipFile

def build_editable(directory, config_settings=None, metadata_directory=None):
    project = loads(Path("pyproject.toml").read_text())["project"]
    name = project["name"].replace("-", "_")
    info, wheel = f"{name}-0.1.0.dist-info", f"{name}-0.1.0-py3-none-any.whl"
    lines = [f"Requires-Dist: {each}" for each in project["dependencies"]]
    head = ["Metadata-Version: 2.1", f"Name: {project['name']}", "Version: 0.1.0", "Provides-Extra: embedded"]
    with ZipFile(Path(directory) / wheel, "w") as opened:
        opened.writestr(f"{info}/METADATA", "\\n".join([*head, *lines, ""]))
        kind = ["Wheel-Version: 1.0", "Generator: a test", "Root-Is-Purelib: true", "Tag: py3-none-any", ""]
        opened.writestr(f"{info}/WHEEL", "\\n".join(kind))
        opened.writestr(f"{info}/RECORD", "")
    return wheel
'''


def _wheel(folder: Path, name: str, version: str) -> None:
    """Put a wheel without content into the folder of an index."""
    package = folder / name
    package.mkdir(parents=True)
    info, wheel = f"{name}-{version}.dist-info", f"{name}-{version}-py3-none-any.whl"
    with ZipFile(package / wheel, "w") as opened:
        opened.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        opened.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        opened.writestr(f"{info}/RECORD", "")
    (package / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{wheel}">{wheel}</a></body></html>')


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The URL of a server of the folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


_MODULES = ("__init__.py", "environment/__init__.py", "environment/installation.py")
"""What scripts/install.py imports of the service."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the real scripts/install.py, and two projects for it to install."""
    folder = tmp_path / "project"
    for name in ("scripts/install.py", *(f"src/learnloop_service/{module}" for module in _MODULES)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "learnloop").mkdir()
    shutil.copy(folder / "backend.py", folder / "learnloop")
    torch = '["learnloop-client==0.1.0", "torch==2.13.0; extra == \'embedded\'"]'
    (folder / "pyproject.toml").write_text(PROJECT.format(root=".", name="learnloop", requires=torch))
    (folder / "learnloop/pyproject.toml").write_text(PROJECT.format(root=".", name="learnloop-client", requires="[]"))
    (folder / "constraints.txt").write_text("torch==2.13.0\n")
    return folder


def test_pytorch_is_a_cpu_build_where_its_index_answers(project: Path, tmp_path: Path) -> None:
    """uv installs it if this environment has uv, as CI's does, and pip otherwise."""
    for name, version in (("torch", "2.13.0"), ("pip", "26.0")):
        _wheel(tmp_path / "usual", name, version)
    _wheel(tmp_path / "cpu", "torch", "2.13.0+cpu")
    programs = tmp_path / "programs"
    programs.mkdir()
    if uv := shutil.which("uv", path=Path(sys.executable).parent):
        (programs / "uv").symlink_to(uv)
    with _served(tmp_path / "usual") as usual, _served(tmp_path / "cpu") as cpu:
        settings = {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": usual,
            "TORCH_INDEX": cpu,
            "UV_CACHE_DIR": str(tmp_path / "cache"),
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(tmp_path),
        }
        command = [sys.executable, "scripts/install.py", "embedded"]
        process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=project, env=settings)
    assert process.returncode == 0, process.stderr
    assert "could not install" not in process.stderr, process.stderr
    [site] = project.glob(".venv/lib/python*/site-packages")
    installed = {path.name for path in site.glob("*.dist-info")}
    assert {"torch-2.13.0+cpu.dist-info", "learnloop-0.1.0.dist-info", "learnloop_client-0.1.0.dist-info"} <= installed
