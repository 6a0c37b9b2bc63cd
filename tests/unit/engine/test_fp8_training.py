"""Training and sampling over a base in 8 bits: what is rounded, and that both round alike.

The forward pass of the sampler is that of a GPU, its kernels in plain torch (tests/fakes/cuda_kernels.py).
"""

import gc
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.trainer.joined_layers import JoinedLayers
from learnloop_service.training.engine.trainer.packed_attention import ATTENTION
from learnloop_service.training.engine.trainer.packed_batches import packed_batches
from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.pretrained import SharedBases
from learnloop_service.training.engine.weights.fp8 import Fp8Matrix
from learnloop_service.training.engine.weights.joined import JoinedModel
from learnloop_service.training.tuning import Tuning
from tests.fakes.cuda_kernels import cuda_weights
from tests.unit.engine.adapter_batches import outcomes, prompt_of, sampler_of
from tests.unit.engine.packed_groups import by_token, group, load

CPU = torch.device("cpu")
GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


def relative(approximate: list[Tensor], exact: list[Tensor]) -> float:
    one, other = (torch.cat([tensor.flatten() for tensor in side]) for side in (approximate, exact))
    return float((one - other).norm() / other.norm())


def rounded(matrix: Tensor) -> Tensor:
    return Fp8Matrix.of(matrix.flatten(0, -2)).exact(torch.float32).view(matrix.shape)


class _RoundedProduct(torch.autograd.Function):
    """x W^T with both factors in 8 bits, forward and back. Backwards the slopes take over the scales of W's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return rounded(x) @ rounded(weight).t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        matrix = Fp8Matrix.of(*ctx.saved_tensors)
        return rounded(grad * matrix.scales.t()) @ matrix.values.float(), None


class _OneOf(nn.Module):
    """One of several linear layers with the same input; the first called computes for all."""

    def __init__(self, members: list[nn.Linear], number: int, shared: dict[str, Tensor]) -> None:
        super().__init__()
        self._members, self._number, self._shared = members, number, shared

    def forward(self, x: Tensor) -> Tensor:
        if self._number == 0:
            whole = torch.cat([linear.weight for linear in self._members])
            self._shared["out"] = _RoundedProduct.apply(x, whole)  # type: ignore[no-untyped-call]
        out = torch.split(self._shared["out"], [len(linear.weight) for linear in self._members], dim=-1)[self._number]
        bias: Tensor | None = self._members[self._number].bias
        return out if bias is None else out + bias


def round_modules(base: Any) -> None:
    """Have a Llama-shaped model's own modules, adapted or not, multiply its matrices in 8 bits."""
    for layer in base.model.layers:
        for names in GROUPS:
            [owner] = [block for block in (layer.self_attn, layer.mlp) if hasattr(block, names[0])]
            linears = [getattr(owner, name) for name in names]
            plain = [getattr(module, "base_layer", module) for module in linears]
            shared: dict[str, Tensor] = {}
            for number, (name, linear) in enumerate(zip(names, linears, strict=True)):
                rounded = _OneOf(plain, number, shared)
                if linear is plain[number]:
                    setattr(owner, name, rounded)
                else:
                    linear.base_layer = rounded


@pytest.mark.parametrize(("recompute", "stages"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj", "down_proj"], ["gate_proj"]], ids=str)
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_gradients_are_those_of_rounded_tokens_matrices_and_slopes(
    tmp_path: Path, family: str, targets: Any, recompute: bool, stages: int
) -> None:
    """Nothing else is rounded: adapters, norms, attention and head are as exact as they are otherwise."""
    ids, chosen = group(7)
    batches = list(packed_batches(ids, chosen, 100, CPU))
    plain = by_token(load(tmp_path, family, ATTENTION, targets), batches, chosen)
    modules = load(tmp_path, family, ATTENTION, targets)
    round_modules(modules.get_base_model())
    exact = by_token(modules, batches, chosen)
    model = load(tmp_path, family, "sdpa", targets)
    base = model.get_base_model()
    base.joined = JoinedModel(base, [CPU] * stages, torch.float32, ranks=6, share=True, in_fp8=True)
    base.joined_layers = JoinedLayers(base)
    base.joined_layers.recompute = recompute
    rounded = by_token(model, batches, chosen)
    assert len(rounded[1]) == len(exact[1]) > 0
    for ours, theirs, unrounded in zip(
        ([rounded[0][token] for token in exact[0]], rounded[1]),
        (list(exact[0].values()), exact[1]),
        ([plain[0][token] for token in exact[0]], plain[1]),
        strict=True,
    ):
        # A number at the edge between two in 8 bits may fall to either side.
        assert relative(ours, theirs) < 0.2 * relative(ours, unrounded)


def test_stems_are_rounded_like_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared beginning has the same numbers as in one batch; only the sums of its slopes are rounded elsewhere."""
    monkeypatch.setattr("learnloop_service.training.engine.trainer.packed_batches.MIN_STEM", 8)
    ids = [[7] * 12 + [member] * 6 + list(range(20 * member, 20 * member + 20)) for member in range(9)]
    chosen = [[13, 19, 30, 37]] * 9

    def computed(most: int) -> tuple[dict[tuple[int, int], Tensor], list[Tensor]]:
        model = load(tmp_path, "qwen3", "sdpa")
        base = model.get_base_model()
        base.joined = JoinedModel(base, [CPU], torch.float32, ranks=4, share=True, in_fp8=True)
        base.joined_layers = JoinedLayers(base)
        return by_token(model, packed_batches(ids, chosen, most, CPU, stems=True), chosen)

    whole, stemmed = computed(10_000), computed(110)
    assert relative([stemmed[0][token] for token in whole[0]], list(whole[0].values())) < 0.01
    assert relative(stemmed[1], whole[1]) < 0.05


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_the_trainer_rounds_as_the_sampler_does(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = cuda_weights(monkeypatch)
    prompts = [prompt_of(30 + number, seed=number) for number in range(6)]

    def joined_model(*, in_fp8: bool) -> Any:
        model = load(tmp_path, family, "sdpa")
        base = model.get_base_model()
        base.joined = JoinedModel(base, [CPU], torch.float32, ranks=4, share=True, in_fp8=in_fp8)
        return model

    def apart(*, sampled_in_fp8: bool, trained_in_fp8: bool) -> float:
        """How far a trainer's log-probabilities are from those of a sampler, in the mean."""
        sampled, trained = (joined_model(in_fp8=rounded) for rounded in (sampled_in_fp8, trained_in_fp8))
        sampler = sampler_of({"w": weights(sampled, CPU, torch.float32)})
        replies = outcomes(sampler, [SampleRequest(prompt, "w", 12, seed=0) for prompt in prompts])
        policy = Policy(trained, Tuning("lora", rank=4), Path)
        policy.pack()
        ids = [[*prompt, *reply.ids] for prompt, reply in zip(prompts, replies, strict=True)]
        chosen = [list(range(len(prompt), len(sequence))) for prompt, sequence in zip(prompts, ids, strict=True)]
        trained_logprobs = by_token(trained, packed_batches(ids, chosen, 10_000, CPU), chosen)[0]
        logprobs = {
            (number, position): logprob
            for number, reply in enumerate(replies)
            for position, logprob in zip(chosen[number], reply.logprobs, strict=True)
        }
        return fmean(abs(float(trained_logprobs[token]) - logprobs[token]) for token in trained_logprobs)

    exact = apart(sampled_in_fp8=False, trained_in_fp8=False)
    rough = apart(sampled_in_fp8=True, trained_in_fp8=False)
    alike = apart(sampled_in_fp8=True, trained_in_fp8=True)
    assert exact < 1e-4
    assert alike < 0.2 * rough


def test_a_base_in_8_bits_takes_half_of_the_memory(tmp_path: Path) -> None:
    """Its matrices are there once, in one byte a number; its modules say NaN where they were."""
    load(tmp_path, "qwen3", "sdpa")
    tuning = Tuning("lora", rank=4)
    sizes = {}
    for in_fp8 in (False, True):
        bases = SharedBases([CPU], in_fp8=in_fp8)
        model: Any = bases.model(tmp_path, tuning)
        joints = [joint for layer in model.joined.layers for joint in layer.joints]
        rounded = [joint.in_fp8.values for joint in joints if joint.in_fp8]
        matrices = [joint.matrix[:, : joint.matrix.shape[1] - len(joint.low)] for joint in joints]
        sizes[in_fp8] = sum(matrix.numel() * matrix.itemsize for matrix in (*matrices, *rounded))
        weight = model.model.layers[0].mlp.up_proj.weight
        assert weight.shape == (64, 32)
        assert bool(weight.isnan().all()) is in_fp8
        assert weight.untyped_storage().nbytes() == (2 if in_fp8 else joints[2].matrix.untyped_storage().nbytes())
        del model, joints, rounded, matrices, weight
        gc.collect()
    assert 2 * sizes[True] == sizes[False]


def test_layers_of_odd_sizes_stay_as_they_are(tmp_path: Path) -> None:
    model = load(tmp_path, "llama", "sdpa").get_base_model()
    layer = model.model.layers[0].mlp
    layer.up_proj.base_layer = nn.Linear(32, 72, bias=False)
    joined = JoinedModel(model, [CPU], torch.float32, ranks=4, share=True, in_fp8=True)
    odd, even = joined.layers[0].gate_up, joined.layers[1].gate_up
    assert odd.in_fp8 is None
    assert torch.equal(odd.weight[64:], layer.up_proj.base_layer.weight)
    assert even.in_fp8 is not None
    assert even.matrix.shape[1] == len(even.low)
