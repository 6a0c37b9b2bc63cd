from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from training.engine.weights.tensor_file import write_tensors


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_the_bytes_are_those_of_safetensors_itself(metadata: dict[str, str] | None, tmp_path: Path) -> None:
    tensors = {
        "b.exp_avg": torch.randn(3, 5),
        "a.step": torch.tensor(2.0),
        "c": torch.randn(7, 2).bfloat16(),
        "Ä": torch.randn(1, 3).half(),
        "none": torch.empty(0, 4),
        "a.exp_avg": torch.randn(4, 4),
    }
    save_file(tensors, tmp_path / "theirs", metadata=metadata)
    write_tensors(tensors, tmp_path / "ours", metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_parameters_and_parts_of_tensors_are_written_as_they_are_seen(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    write_tensors({"part": whole.t()[1:], "trained": torch.nn.Parameter(whole)}, tmp_path / "file")
    found = load_file(tmp_path / "file")
    assert torch.equal(found["part"], whole.t()[1:])
    assert torch.equal(found["trained"], whole)
