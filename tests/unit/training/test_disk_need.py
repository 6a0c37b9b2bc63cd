"""How much disk a run takes."""

from pathlib import Path

import pytest

from learnloop_service.training.bases.files import tensor_shapes
from learnloop_service.training.disk_need import DiskNeed, disk_need
from learnloop_service.training.tuning import Tuning
from tests.fakes.tiny_model import make_tiny_model


def test_whole_weights_take_what_the_files_of_the_base_in_float32_do(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    need = disk_need(base, Tuning("full"), 5, 100)
    files = sum(path.stat().st_size for path in base.iterdir())
    assert need.checkpoint == pytest.approx(files, rel=0.05)
    weights = need.optimizer / 3 / 2  # three states of two moments
    assert need.checkpoint > weights > 0.5 * need.checkpoint
    assert need.engine == 5 * need.checkpoint + need.optimizer
    assert need.total == need.engine + 100 * 30_000


def test_an_adapter_takes_its_rank_times_the_sides_of_each_matrix(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    shapes = tensor_shapes(base)
    assert shapes is not None
    one, all_of_them = (
        disk_need(base, Tuning("lora", 4, 8, modules), 1, 0).optimizer / 2 / 4 for modules in (("q_proj",), ())
    )
    assert one == 4 * sum(sum(shape) for name, shape in shapes.items() if name.endswith("q_proj.weight"))
    assert one < all_of_them < sum(map(sum, shapes.values())) * 4


def test_it_is_named_in_figures(tmp_path: Path) -> None:
    assert str(DiskNeed(2e9, 9, 12e9, 0)) == "9 checkpoints of 2.00 GB and 12.00 GB of optimizer state"
    with pytest.raises(ValueError, match="no readable safetensors"):
        disk_need(tmp_path, Tuning("full"), 1, 1)
