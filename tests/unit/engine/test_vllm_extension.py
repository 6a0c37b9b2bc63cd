"""Loading whole weights in a worker of a vLLM that wraps layers for LoRA. The real one: test_real_vllm."""

import pytest
from torch import nn

from learnloop_service.training.engine.vllm.extension.learnloop_vllm import LearnloopWorker


class _Wrapper(nn.Module):
    """The wrapper of vLLM 0.24."""

    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer


class _LoadingWrapper(_Wrapper):
    """The wrapper of vLLM 0.32."""

    def load_weights(self) -> None: ...


class _Worker(LearnloopWorker):
    def __init__(self, model: nn.Module) -> None:
        self.model_runner = self
        self.model = model
        self.names: list[str] = []

    def get_model(self) -> nn.Module:
        return self.model

    def reload_weights(self, weights_path: str) -> None:
        self.names = [name for name, _ in self.model.named_parameters()]
        if weights_path == "broken":
            raise KeyError(weights_path)


def _model(wrapper: type[_Wrapper]) -> nn.Module:
    layer = nn.Linear(2, 2, bias=False)
    return nn.ModuleDict({"layer": nn.Sequential(wrapper(layer)), "head": nn.Linear(2, 2, bias=False)})


def test_wrapped_layers_have_their_checkpoints_names_while_weights_load() -> None:
    worker = _Worker(_model(_Wrapper))
    before = dict(worker.model.named_modules())
    worker.learnloop_load("good")
    assert worker.names == ["layer.0.weight", "head.weight"]
    assert dict(worker.model.named_modules()) == before


def test_layers_are_wrapped_again_after_a_load_that_failed() -> None:
    worker = _Worker(_model(_Wrapper))
    with pytest.raises(KeyError):
        worker.learnloop_load("broken")
    assert isinstance(worker.model.get_submodule("layer.0"), _Wrapper)


def test_wrappers_that_load_weights_are_left_to_it() -> None:
    worker = _Worker(_model(_LoadingWrapper))
    worker.learnloop_load("good")
    assert worker.names == ["layer.0.base_layer.weight", "head.weight"]
