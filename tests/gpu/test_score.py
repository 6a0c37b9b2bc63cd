"""Recorded tokens are scored on a GPU as they were sampled there, up to rounding."""

from pathlib import Path

import pytest
import torch

from learnloop_service.training.call_sequences import SampledCall, joined
from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.weights.fp8 import CAPABILITIES
from learnloop_service.training.tuning import Tuning
from tests.fakes.engine import odd_share, sampled_group
from tests.fakes.tiny_model import make_tiny_model
from tests.gpu.cuda_models import tokens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
MEAN_ROUNDING = 0.05
"""What log-probabilities may be off by in the mean: in bfloat16 on a CPU it is 0.01, and with another step's 1.0."""
MEAN_ROUNDING_IN_FP8 = 0.2
"""The same where the trainer multiplies in 8 bits: 0.055 on an H200."""


@pytest.mark.parametrize(("mode", "in_fp8"), [("full", False), ("lora", False), ("lora", True)])
def test_scores_are_those_of_the_sampler(tmp_path: Path, mode: str, in_fp8: bool) -> None:
    if in_fp8 and torch.cuda.get_device_capability()[0] not in CAPABILITIES:
        pytest.skip("needs a GPU that multiplies in 8 bits")
    make_tiny_model(
        tmp_path / "base", "qwen3", overrides={"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8}
    )
    registry = Registry(tmp_path / "data", {"tiny": tmp_path / "base"})
    engine = Engine(registry, Sampler(slots=16), device="cuda", fp8_training=in_fp8)
    tuning = Tuning("full") if mode == "full" else Tuning("lora", rank=8)
    model = registry.create(project="test", name="agent", base_model="tiny", tuning=tuning).id
    for _ in range(3):
        group = sampled_group(engine, "test/agent", odd_share, count=8)
        assert finish(engine.train(model, [group], TrainOptions(learning_rate=1e-2))).trained
    for step in (3, 1):  # from memory, and read from disk
        target = registry.resolve(f"test/agent@{step}")
        prompts = [tuple(tokens(20 + number, number)) for number in range(8)]
        samples = engine.sample(target, [SampleRequest(prompt, target.key, 60, seed=7) for prompt in prompts])
        calls = [
            SampledCall(prompt, tuple(sample.ids), tuple(sample.logprobs))
            for prompt, sample in zip(prompts, samples, strict=True)
        ]
        scores = finish(engine.score(target, [joined([call]) for call in calls])).logprobs
        differences = [
            abs(one - other)
            for row, call in zip(scores, calls, strict=True)
            for one, other in zip(row, call.logprobs, strict=True)
        ]
        assert sum(differences) / len(differences) < (MEAN_ROUNDING_IN_FP8 if in_fp8 else MEAN_ROUNDING)
