"""Adapters of one base that are sampled in one batch."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from learnloop_service.training.engine.sampling.requests import Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.weights.joined import JoinedModel
from tests.fakes.tiny_model import make_tiny_model

CPU = torch.device("cpu")
TARGETS: list[Any] = ["all-linear", ["q_proj", "v_proj", "down_proj"], ["gate_proj", "o_proj"]]
RANKS = (2, 4, 1, 3)
ROUNDING = 1e-4
"""The most by which a log-probability in float32 depends on what shares the batch. With another adapter it is another
by 0.1 and more."""


class Base:
    """A tiny base with room for a number of ranks, and adapters on it that differ in everything."""

    def __init__(
        self, directory: Path, weights: Callable[..., Any], ranks: int, family: str = "qwen3", stages: int = 1
    ) -> None:
        self._directory = make_tiny_model(directory, family)
        self._weights = weights
        self.joined = JoinedModel(self._plain(), [CPU] * stages, torch.float32, ranks=ranks, share=True)

    def _plain(self) -> Any:
        return AutoModelForCausalLM.from_pretrained(self._directory, dtype=torch.float32)

    def adapted(self, number: int) -> Any:
        """A peft model whose base is the joined one."""
        config = LoraConfig(
            task_type="CAUSAL_LM",
            r=RANKS[number % len(RANKS)],
            target_modules=TARGETS[number % len(TARGETS)],
            init_lora_weights=False,
        )
        torch.manual_seed(number)
        model: Any = get_peft_model(self._plain(), config).eval()
        model.get_base_model().joined = self.joined
        return model

    def weights(self, number: int) -> Any:
        return self._weights(self.adapted(number), CPU, torch.float32)


def sampler_of(members: dict[str, Any], **options: Any) -> Sampler:
    sampler = Sampler(**options)
    for key, weights in members.items():
        sampler.set_weights(key, weights)
    return sampler


def outcomes(sampler: Sampler, requests: Sequence[SampleRequest]) -> list[Any]:
    outcome_of: dict[int, Any] = {}
    for number, request in enumerate(requests):
        sampler.submit(request, None, partial(outcome_of.__setitem__, number))
    while sampler.busy:
        sampler.step()
    return [outcome_of[number] for number in range(len(requests))]


def alone(members: dict[str, Any], request: SampleRequest) -> Sample:
    [sample] = outcomes(sampler_of({request.weights_key: members[request.weights_key]}, slots=4), [request])
    assert isinstance(sample, Sample)
    return sample


def assert_as_alone(members: dict[str, Any], requests: Sequence[SampleRequest], samples: Sequence[Any]) -> None:
    for request, sample in zip(requests, samples, strict=True):
        expected = alone(members, request)
        assert sample.ids == expected.ids
        assert sample.logprobs == pytest.approx(expected.logprobs, abs=ROUNDING)


def prompt_of(length: int, seed: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(320), k=length))
