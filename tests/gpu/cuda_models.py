"""Tiny models on a GPU, and what they sample and learn."""

import random
from functools import partial
from math import expm1, sqrt
from pathlib import Path
from statistics import fmean, variance
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from learnloop_service.training.engine.engine import Engine, finish
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.packed_batches import packed_batches
from learnloop_service.training.engine.trainer.padded_batches import padded_batches
from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.pretrained import fresh_adapter
from learnloop_service.training.engine.weights.weights import Weights
from learnloop_service.training.tuning import Tuning
from tests.fakes.engine import odd_share, sampled_group
from tests.fakes.tiny_model import make_tiny_model

FAMILIES = ("qwen2", "qwen3", "llama")
SIGNIFICANT = 3.09
"""Standard errors by which a mean must rise: a one-sided test that a model that does not learn passes once in 1,000
times. A reward, the share of odd tokens among at most 12, has a standard deviation of about 0.15, so with EVALUATED
rollouts before and after the standard error of the rise is 0.02, and the rises of 0.15 and more that were seen are
beyond 7 of them."""
EVALUATED = 128


def model_of(directory: Path, family: str, *, adapter: bool = False) -> Any:
    """A random float32 model on the CPU, wide enough for the kernels; with a random adapter if asked for."""
    overrides = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8}
    make_tiny_model(directory, family, overrides=overrides)
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.eval()
    if not adapter:
        return model
    adapted: Any = fresh_adapter(model, Tuning("lora"))
    adapted.eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.02)
    return adapted


def tokens(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(261, 320) for _ in range(count)]


def sample(weights: Weights, prompts: list[list[int]], count: int = 24, **options: Any) -> list[Sample]:
    sampler = Sampler(slots=16)
    sampler.set_weights("w", weights)
    outcome_of: dict[int, Any] = {}
    for number, prompt in enumerate(prompts):
        request = SampleRequest(tuple(prompt), "w", count, seed=number, **options)
        sampler.submit(request, None, partial(outcome_of.__setitem__, number))
    while sampler.busy:
        sampler.step()
    return [outcome_of[number] for number in range(len(prompts))]


def exact_logprobs(model: Any, prompt: list[int], reply: list[int]) -> Tensor:
    ids = [*prompt, *reply]
    [batch] = padded_batches([ids], [range(len(prompt), len(ids))], 10_000, torch.device("cpu"))
    with torch.no_grad():
        return batch.logprobs(model)[0]


def divergence(policy: Policy, prompts: list[list[int]], replies: list[Sample]) -> float:
    """Schulman's k3 estimate of KL(sampler || trainer) in nats a token, of prompts of one length."""
    ids = [prompt + reply.ids for prompt, reply in zip(prompts, replies, strict=True)]
    chosen = [list(range(len(prompts[0]), len(sequence))) for sequence in ids]
    differences: list[float] = []
    for batch in packed_batches(ids, chosen, 600, torch.device("cuda"), stems=True):
        with torch.no_grad():
            trained = batch.logprobs(policy.model)[0].tolist()
        sampled = [value for number in batch.members for value in replies[number].logprobs]
        differences += [one - other for one, other in zip(trained, sampled, strict=True)]
    return fmean(expm1(difference) - difference for difference in differences)


def assert_learns(tmp_path: Path, tuning: Tuning, **options: bool) -> None:
    """It does what is rewarded more often, and each checkpoint replies as its weights did before they were saved."""
    wide = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8}
    make_tiny_model(tmp_path / "base", "qwen3", overrides=wide)

    def engine_here() -> Engine:
        registry = Registry(tmp_path / "data", {"tiny": tmp_path / "base"})
        return Engine(registry, Sampler(slots=32), device="cuda", **options)

    def rewards(engine: Engine, first_seed: int) -> list[float]:
        group = sampled_group(engine, "test/agent", odd_share, count=EVALUATED, first_seed=first_seed)
        return [trajectory.reward for trajectory in group]

    def greedy(engine: Engine, step: int) -> list[int]:
        target = engine.registry.resolve(f"test/agent@{step}")
        request = SampleRequest(tuple(tokens(20, 0)), target.key, 20, temperature=0.0)
        return engine.sample(target, [request])[0].ids

    engine = engine_here()
    model = engine.registry.create(project="test", name="agent", base_model="tiny", tuning=tuning).id
    before, greedy_replies = rewards(engine, first_seed=100_000), [greedy(engine, 0)]
    for step in range(10):
        group = sampled_group(engine, "test/agent", odd_share, count=32, first_seed=1000 * step)
        if len({trajectory.reward for trajectory in group}) == 1:
            break  # equal rewards: a perfect model has nothing left to learn, and takes no step
        finish(engine.train(model, [group], TrainOptions(learning_rate=1e-2)))
        greedy_replies.append(greedy(engine, step + 1))
    after = rewards(engine, first_seed=200_000)
    assert rise(before, after) > SIGNIFICANT, (fmean(before), fmean(after))
    again = engine_here()
    newest = len(greedy_replies) - 1
    for step in (0, newest // 2, newest):
        assert greedy(again, step) == greedy_replies[step]


def rise(before: list[float], after: list[float]) -> float:
    """The rise of the mean in standard errors (Welch's statistic; with this many values it is normal)."""
    error = sqrt(variance(before) / len(before) + variance(after) / len(after))
    return (fmean(after) - fmean(before)) / error
