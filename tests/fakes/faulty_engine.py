"""An engine with a fault planted in its process: `python -m tests.fakes.faulty_engine FAULT FLAGS`."""

import sys
from dataclasses import replace
from enum import StrEnum
from typing import Any

from learnloop_service.training.engine.__main__ import main
from learnloop_service.training.engine.engine import Engine
from learnloop_service.training.engine.trainer.optimizer import Optimizer
from learnloop_service.training.engine.vllm.compute import VllmCompute


class Planted(StrEnum):
    """What the engine does wrong."""

    STEP_SKIPPED = "step_skipped"
    """The optimizer takes no step, but the checkpoint is made."""
    SAMPLER_STAYS = "sampler_stays"
    """The sampler is never given the trained weights."""
    ADAPTER_NOT_PUSHED = "adapter_not_pushed"
    """vLLM is never given a trained adapter, so it samples from the base."""


def plant(fault: Planted) -> None:
    """Change this process so that it has the fault."""
    if fault is Planted.STEP_SKIPPED:
        vars_of: Any = Optimizer
        vars_of._take_step = lambda self, learning_rate: None
        return
    if fault is Planted.ADAPTER_NOT_PUSHED:
        compute: Any = VllmCompute
        weights = compute._weights
        compute._weights = lambda self, target: replace(weights(self, target), has_adapter=False)
        return

    def keep_sampling(self: Any, before: Any, after: Any, policy: Any) -> None:
        self._add_weights(after, self.sampler.weights(before.key), successor_of=before.key)

    engine: Any = Engine
    engine._after_training = keep_sampling


if __name__ == "__main__":
    plant(Planted(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
