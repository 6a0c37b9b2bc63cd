"""What vLLM's workers get from us (`--worker-extension-cls`). It runs where they do, and imports nothing of ours."""

from typing import Any


class LearnloopWorker:
    """Methods of a vLLM worker that are called by its RPC. A worker has no constructor of ours."""

    reload_weights: Any
    model_runner: Any

    def learnloop_load(self, directory: str) -> None:
        """Have all weights in the directory in place of those before."""
        self.reload_weights(weights_path=directory)
        for module in self.model_runner.get_model().modules():
            # On a CPU a head keeps a packed copy of its matrix. One that shares the embedding's has nothing in the
            # checkpoint, and vLLM does not pack it again.
            if type(module).__name__ == "ParallelLMHead" and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)
