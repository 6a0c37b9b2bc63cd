"""Architectures that are not Llama-shaped are sampled as on a GPU, its kernels in plain torch, with the probabilities
that transformers computes."""

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from learnloop_service.training.engine.sampling.requests import Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.weights.any_model import ModuleWeights
from learnloop_service.training.engine.weights.varlen_attention import Segments, varlen_attention
from tests.fakes.architectures import make_architecture
from tests.fakes.cuda_kernels import packed_modules

WINDOW = 16
"""Tokens that the layers of the architectures with a window see."""


def tokens(count: int, seed: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(261, 320) for _ in range(count))


SHARED = tokens(70, 0)
PROMPTS = [
    tokens(3, 1),
    tokens(2 * WINDOW, 2),
    SHARED + tokens(5, 3),
    SHARED + tokens(40, 4),
    SHARED + tokens(5, 3) + tokens(9, 5),
]


@pytest.fixture(scope="module", params=["gemma3_text", "gemma4_text", "mistral", "phi3", "olmo2", "qwen3_moe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = make_architecture(tmp_path_factory.mktemp(request.param), request.param)
    pretrained: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return pretrained.eval()


def weights_of(model: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return packed_modules(monkeypatch)(ModuleWeights(model, torch.device("cpu"), torch.float32))


def sample(weights: Any, prompts: list[tuple[int, ...]]) -> list[Sample]:
    # in pages of 64 tokens; the cache of a GPU with little memory
    sampler, outcome_of = Sampler(slots=4, cache_bytes=1 << 20), dict[int, Any]()
    sampler.set_weights("w", weights)
    for number, prompt in enumerate(prompts):
        sampler.submit(SampleRequest(prompt, "w", 20, seed=number), None, partial(outcome_of.__setitem__, number))
    while sampler.busy:
        sampler.step()
    return [outcome_of[number] for number in range(len(prompts))]


def exact(model: Any, prompt: tuple[int, ...], reply: Sample) -> Tensor:
    ids = torch.tensor([[*prompt, *reply.ids]])
    with torch.inference_mode():
        logprobs: Tensor = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logprobs.gather(1, torch.tensor(reply.ids)[:, None])[:, 0]


def assert_exact(model: Any, weights: Any) -> None:
    for prompt, reply in zip(PROMPTS, sample(weights, PROMPTS), strict=True):
        torch.testing.assert_close(torch.tensor(reply.logprobs), exact(model, prompt, reply), atol=1e-4, rtol=0)


def test_samples_have_the_probabilities_of_the_model(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_exact(model, weights_of(model, monkeypatch))


def test_new_weights_are_taken_over_in_place(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = weights_of(model, monkeypatch)
    sample(weights, PROMPTS)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.mul_(0.8)
    weights.update(model)
    assert_exact(model, weights)


def test_a_model_that_cannot_be_captured_is_sampled_without_graphs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    weights = weights_of(model, monkeypatch)
    monkeypatch.setattr("learnloop_service.training.engine.weights.packed_modules.captured", refuse)
    assert_exact(model, weights)
    assert not weights.captured


@pytest.mark.parametrize("window", [None, 1, 3, 50])
def test_packed_attention_sees_a_window(window: int | None) -> None:
    torch.manual_seed(0)
    counts, lengths = (5, 1), (5, 7)
    query, key, value = (torch.randn(sum(part), 2, 16) for part in (counts, lengths, lengths))
    segments = Segments.of(counts, lengths, torch.device("cpu"))
    attended = varlen_attention(query, key, value, segments, scale=0.25, window=window)
    at = 0
    for count, length, first in zip(counts, lengths, (0, lengths[0]), strict=True):
        for position in range(length - count, length):
            visible = slice(first + (max(position + 1 - window, 0) if window else 0), first + position + 1)
            scores = (0.25 * torch.einsum("hd,khd->hk", query[at], key[visible])).softmax(-1)
            torch.testing.assert_close(attended[at], torch.einsum("hk,khd->hd", scores, value[visible]))
            at += 1
