"""What vLLM's workers get from us (`--worker-extension-cls`). It runs where they do, and imports nothing of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LearnloopWorker:
    """Methods of a vLLM worker that are called by its RPC. A worker has no constructor of ours."""

    reload_weights: Any
    model_runner: Any

    def learnloop_load(self, directory: str) -> None:
        """Have all weights in the directory in place of those before."""
        model = self.model_runner.get_model()
        with _unwrapped(model):
            self.reload_weights(weights_path=directory)
        for module in model.modules():
            # On a CPU a head keeps a packed copy of its matrix. One that shares the embedding's has nothing in the
            # checkpoint, and vLLM does not pack it again.
            if type(module).__name__ == "ParallelLMHead" and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)


@contextmanager
def _unwrapped(model: Any) -> Iterator[None]:
    """The layers without what `--enable-lora` wraps them in. Wrappers that cannot load weights themselves, as those of
    vLLM 0.24, hide the layers' weights from the names that these have in a checkpoint."""
    wrappers = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if hasattr(module, "base_layer") and not hasattr(module, "load_weights")
    ]
    for name, wrapper in wrappers:
        model.set_submodule(name, wrapper.base_layer)
    try:
        yield
    finally:
        for name, wrapper in wrappers:
            model.set_submodule(name, wrapper)
