"""Checkpoints are whole or absent, and torn ones are found."""

import json
from pathlib import Path

import pytest

from learnloop_service.training.engine.registry import checkpoints
from learnloop_service.training.engine.registry.checkpoints import CheckpointNotWritten, CorruptCheckpoint, Manifest

MANIFEST = Manifest(step=3, model="p/n", base_model="tiny", parent="p/n@2", metrics={"loss": 0.5})


def _fill(directory: Path) -> None:
    (directory / "model.safetensors").write_bytes(b"weights" * 100)
    (directory / "config.json").write_text("{}")
    (directory / checkpoints.OPTIMIZER_FILE).write_bytes(b"moments")


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    written = checkpoints.write(tmp_path, MANIFEST, _fill)
    whole, torn = checkpoints.scan(tmp_path)
    assert whole == {3: written}
    assert torn == []
    assert written.directory == tmp_path / "000003"
    assert written.manifest.metrics == {"loss": 0.5}
    assert set(written.manifest.files) == {"model.safetensors", "config.json"}
    assert written.manifest.created.endswith("Z")
    written.verify()


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        _fill(directory)
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointNotWritten, match="checkpoint 3 could not be written: No space left"):
        checkpoints.write(tmp_path, MANIFEST, fail)
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_not_overwritten(tmp_path: Path) -> None:
    checkpoints.write(tmp_path, MANIFEST, _fill).verify()
    with pytest.raises(CheckpointNotWritten):
        checkpoints.write(tmp_path, MANIFEST, lambda directory: (directory / "other").touch())
    whole, _ = checkpoints.scan(tmp_path)
    whole[3].verify()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".unfinished-000004-ab").mkdir()
    (tmp_path / ".unfinished-000004-ab" / "model.safetensors").touch()
    assert checkpoints.scan(tmp_path) == ({}, [])
    assert list(tmp_path.iterdir()) == []


def _truncate(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    "tear",
    [
        _truncate,
        lambda directory: (directory / "model.safetensors").unlink(),
        lambda directory: (directory / "manifest.json").unlink(),
        lambda directory: (directory / "manifest.json").write_text(""),
        lambda directory: (directory / "manifest.json").write_text('{"format": 1}'),
        lambda directory: (directory / "manifest.json").write_text('{"format": 2}'),
        lambda directory: (directory / "manifest.json").write_text("[]"),
        lambda directory: directory.rename(directory.with_name("000009")),
    ],
)
def test_a_torn_checkpoint_is_set_aside(tmp_path: Path, tear: object) -> None:
    assert callable(tear)
    tear(checkpoints.write(tmp_path, MANIFEST, _fill).directory)
    whole, torn = checkpoints.scan(tmp_path)
    assert whole == {}
    assert [path.suffix for path in torn] == [".torn"]
    assert checkpoints.scan(tmp_path) == ({}, [])
    assert torn[0].is_dir()


def test_one_changed_byte_is_found_when_the_hashes_are_compared(tmp_path: Path) -> None:
    directory = checkpoints.write(tmp_path, MANIFEST, _fill).directory
    path = directory / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    [checkpoint] = checkpoints.scan(tmp_path)[0].values()
    with pytest.raises(CorruptCheckpoint, match=r"model\.safetensors of checkpoint 000003 differs"):
        checkpoint.verify()


def test_the_optimizers_state_may_be_gone_but_not_damaged(tmp_path: Path) -> None:
    checkpoint = checkpoints.write(tmp_path, MANIFEST, _fill)
    (checkpoint.directory / checkpoints.OPTIMIZER_FILE).write_bytes(b"moment!")
    with pytest.raises(CorruptCheckpoint):
        checkpoint.verify()
    (checkpoint.directory / checkpoints.OPTIMIZER_FILE).unlink()
    checkpoint.verify()


def test_two_torn_ones_of_a_step_are_both_kept(tmp_path: Path) -> None:
    for _ in range(2):
        checkpoints.set_aside(checkpoints.write(tmp_path, MANIFEST, _fill).directory)
    assert len(list(tmp_path.glob("*.torn"))) == 2


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    checkpoint = checkpoints.write(tmp_path, MANIFEST, _fill)
    path = checkpoint.directory / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../secret"] = {"bytes": 1, "sha256": "0"}
    path.write_text(json.dumps(manifest))
    whole, torn = checkpoints.scan(tmp_path)
    assert whole == {}
    assert len(torn) == 1
