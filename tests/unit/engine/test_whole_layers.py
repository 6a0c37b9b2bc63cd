"""Layers whose passes are written out give what the model's modules give, with gradients."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.grpo_step import grpo_step
from learnloop_service.training.engine.trainer.packed_batches import packed_batches
from learnloop_service.training.engine.trainer.padded_batches import Batch, padded_batches
from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.pretrained import load_model
from learnloop_service.training.engine.trainer.trajectories import TrainSequence
from learnloop_service.training.tuning import Tuning
from tests.fakes.tiny_model import make_tiny_model

CPU = torch.device("cpu")
FULL = Tuning("full")


def conversations() -> tuple[list[list[int]], list[list[int]]]:
    """Two groups that share a beginning, a fork, a conversation and its copy, one alone; and the trained positions."""
    draw = random.Random(0)

    def some(count: int) -> list[int]:
        return [draw.randrange(261, 320) for _ in range(count)]

    system = some(30)
    prompts = [system + some(12) for _ in range(2)]
    ids = [prompt + some(draw.randrange(5, 140)) for prompt in prompts for _ in range(4)]
    ids += [[*ids[0][:-3], 300, 301], list(ids[1]), some(9)]
    return ids, [sorted(draw.sample(range(1, len(sequence)), 4)) for sequence in ids]


def policy_of(directory: Path, **overrides: Any) -> Policy:
    family = overrides.pop("family", "qwen3")
    make_tiny_model(directory, family, overrides=overrides)
    return Policy(load_model(directory, CPU, torch.float32), FULL, lambda: directory)


def gradients(model: Any, batches: Sequence[Batch], chosen: Sequence[Sequence[int]]) -> tuple[Tensor, list[Tensor]]:
    """The log-probabilities by conversation and position, and the gradients of a weighted sum of them."""
    model.zero_grad()
    logprob_of: dict[tuple[int, int], Tensor] = {}
    for batch in batches:
        logprobs, _ = batch.logprobs(model)
        places = [(number, position) for number in batch.members for position in chosen[number]]
        weights = torch.tensor([1.0 + number - position % 7 for number, position in places])
        (logprobs * weights).sum().backward()  # type: ignore[no-untyped-call]
        logprob_of |= dict(zip(places, logprobs.detach(), strict=True))
    slopes = [parameter.grad for parameter in model.parameters()]
    return torch.stack([logprob_of[token] for token in sorted(logprob_of)]), slopes


@pytest.mark.parametrize("most", [2000, 200, 1])
@pytest.mark.parametrize(
    "shape",
    [
        {"family": "qwen3"},
        {"family": "qwen2"},
        {"family": "llama"},
        {"family": "llama", "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
        {"family": "mistral", "num_hidden_layers": 1},
    ],
    ids=str,
)
def test_they_give_what_the_modules_give(tmp_path: Path, shape: dict[str, Any], most: int) -> None:
    """Gradients of all parameters to 1e-5 of the largest of each, log-probabilities to 1e-5."""
    ids, chosen = conversations()
    policy = policy_of(tmp_path, **shape)
    packed = list(packed_batches(ids, chosen, most, CPU))
    logprobs, slopes = gradients(policy.model, packed, chosen)
    del policy.model.whole_layers
    expected, theirs = gradients(policy.model, list(padded_batches(ids, chosen, 10_000, CPU)), chosen)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-6)
    for one, other in zip(slopes, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=1e-5)


def test_a_gradient_has_the_same_bits_with_any_number_of_threads(tmp_path: Path) -> None:
    """The bits of shared beginnings are the same too, whether activations are kept or computed again."""
    ids, chosen = (part * 4 for part in conversations())
    policy = policy_of(tmp_path, hidden_size=192, intermediate_size=512, num_attention_heads=6, head_dim=32)
    batches = list(packed_batches(ids, chosen, 2000, CPU))
    once = gradients(policy.model, batches, chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("learnloop_service.training.engine.trainer.whole_layers.KEPT_BYTES", 0)
        again = [gradients(policy.model, batches, chosen)]
    policy._recompute()
    again.append(gradients(policy.model, batches, chosen))
    torch.set_num_threads(2)
    again.append(gradients(policy.model, batches, chosen))
    for logprobs, slopes in again:
        assert torch.equal(logprobs, once[0])
        assert all(torch.equal(one, other) for one, other in zip(slopes, once[1], strict=True))


def test_what_is_shared_is_computed_once(tmp_path: Path) -> None:
    ids, chosen = conversations()
    batches: list[int] = []

    def work(piece: Sequence[Any]) -> Any:
        batches.extend(len(batch.tokens) for batch in piece)
        yield

    list(policy_of(tmp_path).in_batches(ids, chosen, None, work))
    assert batches == [len({tuple(sequence[: last + 1]) for sequence in ids for last in range(len(sequence))})]


@pytest.mark.parametrize("options", [{}, {"kl_penalty_coef": 0.5}, {"precalculate_logprobs": True}], ids=str)
def test_a_step_is_the_modules_step(tmp_path: Path, options: dict[str, Any]) -> None:
    ids, chosen = conversations()
    items = [
        TrainSequence(tuple(sequence), tuple(places), (-5.0,) * len(places), 1.0 - 2 * (number % 2), 1.0)
        for number, (sequence, places) in enumerate(zip(ids, chosen, strict=True))
    ]
    ours, theirs = policy_of(tmp_path), policy_of(tmp_path)
    theirs._packed, theirs._whole = False, None
    for policy in (ours, theirs):
        for _ in grpo_step(policy, items, TrainOptions(learning_rate=1e-3, **options), micro_batch_tokens=200):
            pass
    for one, two in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=0)
