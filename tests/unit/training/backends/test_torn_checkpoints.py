"""Torn checkpoints of ART's layout are distinguished from whole ones and set aside."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from learnloop_service.training.backends.local.torn_checkpoints import ADAPTER, is_whole, quarantine
from tests.fakes.local_child import CONFIG, adapter
from tests.unit.training.backends.torn_adapters import OFFSETS, SIZE


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    for step in (0, 1, 2):
        write(tmp_path / f"{step:04d}")
    return tmp_path


def write(checkpoint: Path) -> None:
    checkpoint.mkdir()
    (checkpoint / ADAPTER).write_bytes(adapter())
    (checkpoint / "adapter_config.json").write_text(json.dumps(CONFIG))


def names(checkpoints: Path) -> list[str]:
    return sorted(path.name for path in checkpoints.iterdir())


def test_whole_ones_stay(checkpoints: Path) -> None:
    (checkpoints / "notes").mkdir()
    assert quarantine(checkpoints) == []
    assert names(checkpoints) == ["0000", "0001", "0002", "notes"]
    assert quarantine(checkpoints / "nowhere") == []


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_truncated_adapter(checkpoints: Path, offset: int) -> None:
    (checkpoints / "0002" / ADAPTER).write_bytes(adapter()[:offset])
    assert quarantine(checkpoints) == [checkpoints / "0002.torn"]
    assert names(checkpoints) == ["0000", "0001", "0002.torn"]


def grown(checkpoint: Path) -> None:
    (checkpoint / ADAPTER).write_bytes(adapter() + b"\0")


def empty(checkpoint: Path) -> None:
    for file in checkpoint.iterdir():
        file.unlink()


def without_config(checkpoint: Path) -> None:
    (checkpoint / "adapter_config.json").unlink()


def without_adapter(checkpoint: Path) -> None:
    (checkpoint / ADAPTER).unlink()


def half_a_config(checkpoint: Path) -> None:
    (checkpoint / "adapter_config.json").write_text('{"peft_type": "LO')


def garbage(checkpoint: Path) -> None:
    (checkpoint / ADAPTER).write_bytes(b"\xff" * SIZE)


def header_of_another_kind(checkpoint: Path) -> None:
    (checkpoint / ADAPTER).write_bytes((2).to_bytes(8, "little") + b"[]")


@pytest.mark.parametrize(
    "tear", [grown, empty, without_config, without_adapter, half_a_config, garbage, header_of_another_kind]
)
def test_whatever_else_a_death_leaves(checkpoints: Path, tear: Callable[[Path], None]) -> None:
    tear(checkpoints / "0002")
    assert quarantine(checkpoints) == [checkpoints / "0002.torn"]


def test_the_same_step_is_torn_again(checkpoints: Path) -> None:
    for aside in ("0003.torn", "0003.2.torn", "0003.3.torn"):
        (checkpoints / "0003").mkdir()
        assert quarantine(checkpoints) == [checkpoints / aside]


def test_what_peft_writes_is_whole(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    write(tmp_path / "0001")
    tensors = {"a": torch.zeros(3, 4), "b": torch.zeros(0), "c": torch.zeros(5, dtype=torch.bfloat16)}
    save_file(tensors, tmp_path / "0001" / ADAPTER, metadata={"format": "pt"})
    assert is_whole(tmp_path / "0001")
