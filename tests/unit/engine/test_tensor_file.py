import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from learnloop_service.training.engine.trainer.pretrained import fresh_adapter, save_adapter, save_whole
from learnloop_service.training.engine.weights import tensor_file
from learnloop_service.training.engine.weights.tensor_file import write_tensors
from learnloop_service.training.tuning import Tuning
from tests.fakes.tiny_model import make_tiny_model


@pytest.mark.parametrize("small_bytes", [0, tensor_file._SMALL_BYTES])
@pytest.mark.parametrize("fetched_bytes", [10, tensor_file.FETCHED_BYTES])
@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_the_bytes_are_those_of_safetensors_itself(
    metadata: dict[str, str] | None,
    fetched_bytes: int,
    small_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tensor_file, "_SMALL_BYTES", small_bytes)
    monkeypatch.setattr(tensor_file, "FETCHED_BYTES", fetched_bytes)
    tensors = {
        "b.exp_avg": torch.randn(3, 5),
        "a.step": torch.tensor(2.0),
        "c": torch.randn(7, 2).bfloat16(),
        "Ä": torch.randn(1, 3).half(),
        "none": torch.empty(0, 4),
        "a.exp_avg": torch.randn(4, 4),
    }
    save_file(tensors, tmp_path / "theirs", metadata=metadata)
    hashed = write_tensors(tensors, tmp_path / "ours", metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert hashed == hashlib.sha256((tmp_path / "theirs").read_bytes()).hexdigest()


def test_parameters_and_parts_of_tensors_are_written_as_they_are_seen(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    write_tensors({"part": whole.t()[1:], "trained": torch.nn.Parameter(whole)}, tmp_path / "file")
    tensors = load_file(tmp_path / "file")
    assert torch.equal(tensors["part"], whole.t()[1:])
    assert torch.equal(tensors["trained"], whole)


def test_an_error_of_the_disk_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensor_file, "_SMALL_BYTES", 0)
    monkeypatch.setattr(tensor_file, "FETCHED_BYTES", 10)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_tensors({"weights": torch.randn(100)}, tmp_path / "file")


@pytest.mark.parametrize("writable", [True, False])
def test_whole_weights_have_the_bytes_of_transformers(
    writable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / "base", "gpt_neox"), dtype=torch.float32)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    if not writable:
        monkeypatch.setattr("learnloop_service.training.engine.trainer.pretrained.can_write", lambda tensors: False)
    hashed = save_whole(model, ours)
    model.save_pretrained(theirs)
    files = [{path.name: path.read_bytes() for path in directory.iterdir()} for directory in (ours, theirs)]
    assert files[0] == files[1]
    weights = hashlib.sha256(files[1]["model.safetensors"]).hexdigest()
    assert hashed == ({"model.safetensors": weights} if writable else {})


def test_an_adapter_has_the_bytes_of_peft(tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path / "base", "llama"), dtype=torch.float32)
    adapted = fresh_adapter(base, Tuning("lora"))
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.normal_()
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    save_adapter(adapted, ours)
    adapted.save_pretrained(str(theirs))
    (theirs / "README.md").unlink()
    files = [{path.name: path.read_bytes() for path in directory.iterdir()} for directory in (ours, theirs)]
    assert files[0] == files[1]
