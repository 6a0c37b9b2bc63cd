"""A damaged base model is recognised by its files, and the message names the one at fault."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from learnloop_service.training.bases.files import base_model_fault
from tests.fakes.hostile_bases import HOSTILE
from tests.fakes.tiny_model import make_tiny_model


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def _index(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _no_tokenizer(directory: Path) -> None:
    for path in directory.glob("tokenizer*"):
        path.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated weights": (lambda d: _cut(d / "model.safetensors", 20_000), "model.safetensors: it is cut off"),
    "truncated header": (lambda d: _cut(d / "model.safetensors", 100), "model.safetensors: its header is damaged"),
    "empty weights": (lambda d: _cut(d / "model.safetensors", 0), "model.safetensors: it is not a safetensors file"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "no weights"),
    "missing shard": (_index, "model-2.safetensors: the index names this file, and it is missing"),
    "garbled config": (lambda d: (d / "config.json").write_text("{"), "config.json: it is not JSON"),
    "no config": (lambda d: (d / "config.json").unlink(), "config.json: it is missing"),
    "empty config": (lambda d: (d / "config.json").write_text("{}"), "config.json: it has no model_type"),
    "no tokenizer": (_no_tokenizer, "there is no tokenizer"),
    "garbled tokenizer": (lambda d: _cut(d / "tokenizer.json", 500), "tokenizer.json: it is not JSON"),
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "base")


@pytest.mark.parametrize("name", DAMAGES)
def test_the_file_at_fault_is_named(directory: Path, name: str) -> None:
    assert base_model_fault(directory) is None
    damage, message = DAMAGES[name]
    damage(directory)
    assert message in (base_model_fault(directory) or "")


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    assert "No such file" in (base_model_fault(tmp_path / "nothing") or "")


def test_a_repaired_model_is_usable_again(directory: Path) -> None:
    whole = (directory / "config.json").read_text()
    (directory / "config.json").unlink()
    assert base_model_fault(directory) is not None
    (directory / "config.json").write_text(whole)
    assert base_model_fault(directory) is None


STATIC = [name for name in HOSTILE if "template" not in name]


@pytest.mark.parametrize("name", STATIC)
def test_what_the_files_show_of_a_hostile_model(directory: Path, name: str) -> None:
    change, message = HOSTILE[name]
    change(directory)
    assert message in (base_model_fault(directory) or "")


def test_an_index_names_no_file_elsewhere(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
    index = {"weight_map": {"a": "../model.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "it names files outside of the directory" in (base_model_fault(directory) or "")


def test_a_pipe_is_not_opened(directory: Path) -> None:
    (directory / "config.json").unlink()
    os.mkfifo(directory / "config.json")
    assert base_model_fault(directory) == "config.json: it is neither a file nor a directory"
