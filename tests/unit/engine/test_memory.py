"""The release of the memory that torch keeps in reserve on GPUs."""

import pytest
import torch

from learnloop_service.training.engine.memory import release_reserved


def test_memory_is_released_after_the_work_of_all_gpus_that_have_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch waits for the current GPU only. One without memory of ours is not touched."""
    reserved, calls = [4, 0, 2], list[object]()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(reserved))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: reserved[number])
    monkeypatch.setattr(torch.cuda, "synchronize", calls.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("released"))
    release_reserved()
    assert calls == [0, 2, "released"]
