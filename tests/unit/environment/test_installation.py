"""The command that adds an extra is that of the copy that runs, however it was installed."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.environment import installation
from learnloop_service.environment.installation import CPU_INDEX, has_nvidia_gpu, install_command, shipped
from tests.fakes.engine_process import ROOT

PIP = [sys.executable, "-m", "pip", "install"]
METADATA = """Metadata-Version: 2.1
Name: learnloop
Version: 0.1.0
Requires-Dist: httpx
Requires-Dist: obstore<1,>=0.12; extra == "s3"
Requires-Dist: torch==2.13.0; extra == 'embedded'
"""


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")


def _installed(site: Path, monkeypatch: pytest.MonkeyPatch, origin: Any = None, installer: str = "pip") -> None:
    """Have this copy be one whose record names this origin (PEP 610)."""
    info = site / "learnloop-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "INSTALLER").write_text(f"{installer}\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(installation, "distributions", partial(distributions, path=[str(site)]))


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        (
            {"url": "https://a.example/learnloop.whl", "archive_info": {}},
            ["learnloop[s3] @ https://a.example/learnloop.whl"],
        ),
        (
            {"url": "https://a.example/r", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            ["learnloop[s3] @ git+https://a.example/r@c0ffee"],
        ),
        ({"url": "file:///", "dir_info": {"editable": True}}, ["--editable", "/[s3]"]),
        ({"url": "file:///", "dir_info": {}}, ["/[s3]"]),
        ({"url": "file:///gone/learnloop.whl", "archive_info": {}}, ["obstore<1,>=0.12"]),
        (None, ["obstore<1,>=0.12"]),
    ],
    ids=["URL", "git", "editable folder", "folder", "wheel that was removed", "index"],
)
def test_an_extra_comes_from_where_the_copy_came_from(
    origin: Any, named: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _installed(tmp_path, monkeypatch, origin)
    assert shlex.split(install_command("s3")) == [*PIP, *named]


def test_a_path_with_spaces_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my copy"
    folder.mkdir()
    _installed(tmp_path, monkeypatch, {"url": folder.as_uri(), "dir_info": {}})
    assert shlex.split(install_command("s3")) == [*PIP, f"{folder}[s3]"]


def test_pytorch_comes_as_a_cpu_build_unless_there_is_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(tmp_path, monkeypatch)
    assert shlex.split(install_command("embedded")) == [*PIP, "--extra-index-url", CPU_INDEX, "torch==2.13.0"]
    monkeypatch.setattr(installation, "has_nvidia_gpu", lambda: True)
    assert shlex.split(install_command("embedded")) == [*PIP, "torch==2.13.0"]


def test_what_uv_installed_uv_adds_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(tmp_path, monkeypatch, installer="uv")
    uv = ["uv", "pip", "install", "--python", sys.executable]
    assert shlex.split(install_command("embedded")) == [*uv, "--torch-backend", "cpu", "torch==2.13.0"]


def test_a_source_folder_has_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "distributions", partial(distributions, path=[str(tmp_path)]))
    assert shlex.split(install_command("s3")) == [*PIP, f"{ROOT}[s3]"]
    assert shipped("configs") == ROOT / "configs"


def test_a_gpu_is_a_device_or_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has_nvidia_gpu(tmp_path)
    (tmp_path / "nvidia-smi").touch(0o755)
    assert has_nvidia_gpu(tmp_path)
    (tmp_path / "nvidia-smi").rename(tmp_path / "nvidia0")
    assert has_nvidia_gpu(tmp_path)


def _texts() -> Iterator[tuple[Path, str]]:
    folders = ("app", "benchmarks", "docs", "environment", "judges", "learnloop", "scripts", "training")
    for path in (ROOT / "README.md", *(path for folder in folders for path in (ROOT / folder).rglob("*"))):
        if path.suffix in (".py", ".md", ".txt", ".js", ".sh"):
            yield path, path.read_text(encoding="utf-8")


def test_nothing_is_installed_from_an_index_under_our_name() -> None:
    """The name on PyPI is not ours: whoever takes it would run code on the machines of those who follow us."""
    by_name = re.compile(
        r"(pip|pipx|tool|uv) (install|add|inject|run) [^`\n&#;]*"
        r"(?<![\w/.-])learnloop(-client)?(\[[\w,]+\])?(?! @)[\s'\"`.]"
    )
    assert by_name.search("pip install 'learnloop[mcp]' x")
    assert by_name.search("uv tool install learnloop\n")
    assert [str(path) for path, text in _texts() if by_name.search(text)] == []
