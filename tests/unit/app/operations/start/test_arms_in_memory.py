"""Whether both arms of a release fit into a GPU's memory."""

from learnloop_service.app.operations.start.arms_in_memory import WEIGHTS_SHARE, missing_bytes
from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.weights import stages

GPU = [{"name": "NVIDIA H100", "memory_used_bytes": 0, "memory_total_bytes": 80_000_000_000}]


def _model(parameters: int | None, tuning: str = "full", base: str = "acme/base") -> Json:
    return {"tuning": tuning, "base_model": base, "parameters": parameters}


def test_whole_models_need_both_and_adapters_of_one_base_need_it_once() -> None:
    small, large = _model(10_000_000_000), _model(14_000_000_000)
    assert missing_bytes(GPU, small, small) == 0
    assert missing_bytes(GPU, small, large) == 2 * 24_000_000_000 - 48_000_000_000 == 0
    assert missing_bytes(GPU, large, large) == 8_000_000_000
    adapter = _model(14_000_000_000, "lora")
    assert missing_bytes(GPU, adapter, adapter) == 0
    assert missing_bytes(GPU, adapter, _model(14_000_000_000, "lora", "acme/other")) == 8_000_000_000
    assert missing_bytes(GPU, adapter, large) == 8_000_000_000


def test_what_the_engine_does_not_say_is_not_known() -> None:
    assert missing_bytes(GPU, _model(None), _model(1)) is None
    assert missing_bytes([{"name": "GPU", "memory_total_bytes": None}], _model(1), _model(1)) is None


def test_the_share_is_the_engines() -> None:
    assert WEIGHTS_SHARE == stages.WEIGHTS_SHARE
