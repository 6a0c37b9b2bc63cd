"""The extension loaded into vLLM's workers (`--worker-extension-cls`). It runs inside their processes and imports
nothing from Learnloop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LearnloopWorker:
    """Methods added to a vLLM worker and called through its RPC. vLLM mixes them in without a constructor."""

    reload_weights: Any
    model_runner: Any

    def learnloop_load(self, directory: str) -> None:
        """Replace all weights by those in the directory."""
        model = self.model_runner.get_model()
        with _unwrapped(model):
            self.reload_weights(weights_path=directory)
        for module in model.modules():
            # On a CPU a head keeps a packed copy of its matrix. If it shares the embedding's, the checkpoint has no
            # tensor for it, and vLLM does not pack it again.
            if type(module).__name__ == "ParallelLMHead" and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)


@contextmanager
def _unwrapped(model: Any) -> Iterator[None]:
    """Take off the wrappers that `--enable-lora` puts around layers while the context is open. Wrappers that cannot
    load weights themselves, such as vLLM 0.24's, make the layers' names differ from those in a checkpoint."""
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
