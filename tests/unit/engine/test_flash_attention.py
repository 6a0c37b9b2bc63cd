from collections.abc import Iterator
from importlib.machinery import ModuleSpec

import pytest
import torch
from structlog.testing import capture_logs
from torch.nn import attention

from learnloop_service.training.engine.weights import flash_attention
from learnloop_service.training.engine.weights.flash_attention import PACKAGE, use_newest


class Gpus:
    """The GPUs of a machine by their compute capability, and what FlashAttention-3 does when it is taken into use."""

    def __init__(self) -> None:
        self.capabilities = [(9, 0), (9, 0)]
        self.installed = True
        self.error: Exception | None = None
        self.used = 0

    def find_spec(self, name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if self.installed and name == PACKAGE else None

    def register(self) -> None:
        if self.error:
            raise self.error
        self.used += 1


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    machine = Gpus()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(machine.capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda number: machine.capabilities[number])
    monkeypatch.setattr(flash_attention, "find_spec", machine.find_spec)
    before = attention._registry._FLASH_ATTENTION_IMPLS["FA3"]
    attention.register_flash_attention_impl("FA3", register_fn=machine.register)
    yield machine
    attention.register_flash_attention_impl("FA3", register_fn=before)


def test_the_third_is_used_where_it_is_installed_and_every_gpu_can_run_it(gpus: Gpus) -> None:
    assert use_newest() == 3
    assert gpus.used == 1
    gpus.capabilities = [(9, 0), (10, 0)]
    assert use_newest() == 2
    assert gpus.used == 1
    gpus.capabilities, gpus.installed = [(9, 0)], False
    assert use_newest() == 2
    assert gpus.used == 1


@pytest.mark.parametrize(
    "error",
    [
        ImportError("undefined symbol"),
        OSError("libcudart.so.13"),
        RuntimeError("does not expose FA3 kernels"),
        ValueError("Unknown flash attention impl"),
    ],
)
def test_a_package_that_does_not_load_is_not_used_and_is_logged(gpus: Gpus, error: Exception) -> None:
    gpus.error = error
    with capture_logs() as logs:
        assert use_newest() == 2
    assert [log["error"] for log in logs] == [str(error)]
