"""The hash of packages changes with whatever a change of code can be."""

import sys
from pathlib import Path

import pytest

from learnloop_service.training.source_code import source_hash


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "hashed_package"
    (root / "prompts").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "prompts" / "task.txt").write_text("Do it.")
    (root / "notes.log").write_text("not read")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, root.name, raising=False)
    return root


def _hash(package: Path) -> str:
    source_hash.cache_clear()
    return source_hash(package.name)


def test_every_file_of_code_counts(package: Path) -> None:
    hashes = [_hash(package)]
    (package / "notes.log").write_text("still not read")
    assert _hash(package) == hashes[0]
    (package / "prompts" / "task.txt").write_text("Do it well.")
    hashes.append(_hash(package))
    (package / "more.py").write_text("x = 1\n")
    hashes.append(_hash(package))
    (package / "more.py").rename(package / "other.py")
    hashes.append(_hash(package))
    (package / "prompts" / "task.txt").unlink()
    hashes.append(_hash(package))
    assert len(set(hashes)) == 5
