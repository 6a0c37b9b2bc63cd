"""Packed training batches: what is shared is computed once, and nothing else changes."""

import gc
import random
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learnloop_service.training.engine.trainer.chunked_logprobs import PIECE_BYTES, head_logprobs
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.grpo_step import grpo_step
from learnloop_service.training.engine.trainer.joined_layers import JoinedLayers
from learnloop_service.training.engine.trainer.packed_attention import ATTENTION
from learnloop_service.training.engine.trainer.packed_batches import packed_batches
from learnloop_service.training.engine.trainer.padded_batches import padded_batches
from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.pretrained import SharedBases, fresh_adapter
from learnloop_service.training.engine.trainer.trajectories import TrainSequence
from learnloop_service.training.engine.weights.joined import JoinedModel, join
from learnloop_service.training.tuning import Tuning
from tests.fakes.tiny_model import make_tiny_model
from tests.unit.engine.packed_groups import CPU, by_token, group, load


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("most", [1000, 60, 1])
def test_packed_batches_give_what_padded_ones_give(tmp_path: Path, family: str, most: int) -> None:
    ids, chosen = group(most)
    padded = by_token(load(tmp_path, family, "sdpa"), padded_batches(ids, chosen, 10_000, CPU), chosen)
    packed = by_token(load(tmp_path, family, ATTENTION), packed_batches(ids, chosen, most, CPU), chosen)
    assert packed[0].keys() == padded[0].keys()
    for token, value in padded[0].items():
        torch.testing.assert_close(packed[0][token], value, atol=1e-5, rtol=0)
    for one, other in zip(packed[1], padded[1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("recompute", "stages"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj", "down_proj"], ["gate_proj"]], ids=str)
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_joined_layers_give_what_the_modules_give(
    tmp_path: Path, family: str, targets: Any, recompute: bool, stages: int
) -> None:
    """With biases, head norms and both, adapters on some layers only, and fewer ranks than there is room for."""
    ids, chosen = group(7)
    padded = by_token(load(tmp_path, family, "sdpa", targets), padded_batches(ids, chosen, 10_000, CPU), chosen)
    model = load(tmp_path, family, "sdpa", targets)
    base = model.get_base_model()
    base.joined = JoinedModel(base, [CPU] * stages, torch.float32, ranks=6, share=True)
    base.joined_layers = JoinedLayers(base)
    base.joined_layers.recompute = recompute
    joined = by_token(model, packed_batches(ids, chosen, 100, CPU), chosen)
    for token, value in padded[0].items():
        torch.testing.assert_close(joined[0][token], value, atol=1e-5, rtol=0)
    assert len(joined[1]) == len(padded[1]) > 0
    for one, other in zip(joined[1], padded[1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("most", [110, 60])
def test_what_all_sequences_begin_with_is_computed_once(
    tmp_path: Path, family: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient is the sum over all batches, and equals the gradients of whole sequences."""
    monkeypatch.setattr("learnloop_service.training.engine.trainer.packed_batches.MIN_STEM", 8)
    draw = random.Random(most)
    ids = [[7] * 12 + [group] * 6 + [draw.randrange(320) for _ in range(20)] for group in range(3) for _ in range(3)]
    chosen = [[13, 19, 30, 37]] * 9
    padded = by_token(load(tmp_path, family, "sdpa"), padded_batches(ids, chosen, 10_000, CPU), chosen)
    model = load(tmp_path, family, "sdpa")
    base = model.get_base_model()
    join(base, 4)
    base.joined_layers = JoinedLayers(base)
    batches = list(packed_batches(ids, chosen, most, CPU, stems=True))
    assert len(batches) > 1
    assert sum(len(batch.tokens) for batch in batches) < sum(map(len, ids)) - 12 * 8
    with torch.no_grad():  # as a first pass over all batches does
        assert all(torch.isfinite(batch.logprobs(model)[0]).all() for batch in batches)
    joined = by_token(model, batches, chosen)
    for token, value in padded[0].items():
        torch.testing.assert_close(joined[0][token], value, atol=1e-5, rtol=0)
    assert len(joined[1]) == len(padded[1]) > 0
    for one, other in zip(joined[1], padded[1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_many_adapters_have_one_base(tmp_path: Path) -> None:
    """What one of them learns changes nothing for another; the memory goes when the last of them goes."""
    ids, chosen = group(3)
    make_tiny_model(tmp_path, "qwen3")
    bases, tuning = SharedBases([CPU]), Tuning("lora", rank=4)
    models: list[Any] = [fresh_adapter(bases.model(tmp_path, tuning), tuning) for _ in range(2)]
    policies = [Policy(model, tuning, Path) for model in models]
    for policy in policies:
        policy.pack()
    one, other = (cast(Any, policy.base).joined for policy in policies)
    assert one is other
    places = {next(policy.base.parameters()).data_ptr() for policy in policies}
    assert len(places) == 1

    def logprobs(policy: Policy) -> Tensor:
        [batch] = packed_batches(ids, chosen, 10_000, CPU)
        with torch.no_grad():
            return batch.logprobs(policy.model)[0]

    before = logprobs(policies[1])
    assert torch.equal(logprobs(policies[0]), before)
    for _ in grpo_step(policies[0], items(3), TrainOptions(learning_rate=1e-1), micro_batch_tokens=None):
        pass
    assert not torch.allclose(logprobs(policies[0]), before, atol=1e-3)
    assert torch.equal(logprobs(policies[1]), before)
    assert bases.has(tmp_path, tuning)
    del policy, policies, models, one, other
    gc.collect()
    assert not bases.has(tmp_path, tuning)


@pytest.mark.parametrize(
    ("groups", "most", "expected"), [(4, 250, [2, 2]), (5, 170, [1] * 5), (1, 90, [2, 2])], ids=str
)
def test_batches_are_cut_between_groups(groups: int, most: int, expected: list[int]) -> None:
    """A group has 4 conversations with a prompt of 50 tokens. It is not cut if it fits, and batches are few."""
    whole = [[7] * 20 + [group] * 30 + [100 + group, member] * 10 for group in range(groups) for member in range(4)]
    batches = list(packed_batches(whole, [[1]] * len(whole), most, CPU))
    unit = 4 if groups > 1 else 1
    assert [len(batch.members) // unit for batch in batches] == expected


@given(st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=8), st.integers(1, 30))
def test_every_sequence_lies_in_one_batch_with_its_shared_beginning_once(ids: list[list[int]], most: int) -> None:
    chosen = [list(range(1, len(sequence))) for sequence in ids]
    batches = list(packed_batches(ids, chosen, most, CPU))
    assert sorted(number for batch in batches for number in batch.members) == list(range(len(ids)))
    for batch in batches:
        members = [ids[number] for number in batch.members]
        assert len(batch.tokens) == len({tuple(m[: k + 1]) for m in members for k in range(len(m))})
        assert len(batch.members) == 1 or len(batch.tokens) <= most
        assert batch.targets.tolist() == [token for member in members for token in member[1:]]
        assert batch.tokens[batch.before].tolist() == [token for member in members for token in member[:-1]]


def test_the_head_in_pieces_is_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(50, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    targets, slope = torch.randint(30, (50,)), torch.randn(50)
    expected = torch.log_softmax(hidden @ weight.t(), dim=-1)
    entropy = -(expected.exp() * expected).sum(-1)
    (expected[torch.arange(50), targets] * slope).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [hidden.grad, weight.grad]
    hidden.grad = weight.grad = None
    assert PIECE_BYTES > 4 * 30 * 7
    monkeypatch.setattr("learnloop_service.training.engine.trainer.chunked_logprobs.PIECE_BYTES", 4 * 30 * 7)
    logprobs, own_entropy = head_logprobs(hidden, weight, targets)
    (logprobs * slope).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(logprobs, expected[torch.arange(50), targets])
    torch.testing.assert_close(own_entropy, entropy)
    torch.testing.assert_close([hidden.grad, weight.grad], gradients)


def policy_of(directory: Path) -> Policy:
    return Policy(load(directory, "qwen3", "sdpa"), Tuning("lora"), Path)


def items(count: int) -> list[TrainSequence]:
    ids, chosen = group(count)
    return [
        TrainSequence(tuple(sequence), tuple(places), (-5.0,) * len(places), 1.0 - 2 * (number % 2), 1.0)
        for number, (sequence, places) in enumerate(zip(ids, chosen, strict=True))
    ]


@pytest.mark.parametrize("options", [{}, {"kl_penalty_coef": 0.5}, {"precalculate_logprobs": True}], ids=str)
def test_a_packed_step_is_the_same_step(tmp_path: Path, options: dict[str, Any]) -> None:
    """Through joined layers too, which a GPU trains with, with activations that are computed again, and in stages."""
    plain, packed, recomputed, staged = (policy_of(tmp_path) for _ in range(4))
    cast(Any, staged.base).joined = JoinedModel(staged.base, [CPU] * 2, torch.float32, ranks=4, share=True)
    for policy in (packed, recomputed, staged):
        policy.pack()
    recomputed._recompute()
    assert recomputed.recomputing
    for policy, most in ((plain, 4096), (packed, 60), (recomputed, 4096), (staged, 60)):
        for _ in grpo_step(policy, items(4), TrainOptions(learning_rate=1e-3, **options), micro_batch_tokens=most):
            pass
    for other in (packed, recomputed, staged):
        for one, two in zip(plain.model.parameters(), other.model.parameters(), strict=True):
            torch.testing.assert_close(one, two, atol=2e-4, rtol=0)


def test_a_sequence_that_cannot_fit_is_recomputed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(tmp_path)
    policy.pack()
    assert policy._layers is not None
    free = 40 * policy._layers.layer_bytes * policy.model.config.num_hidden_layers
    monkeypatch.setattr("learnloop_service.training.engine.trainer.joined_layers.free_bytes", lambda _: free)
    recomputed: list[bool] = []

    def work(_: Sequence[Any]) -> Generator[None, None, None]:
        recomputed.append(policy.recomputing)
        yield

    for length in (40, 41):
        list(policy.in_batches([[300] * length], [[1]], 100, work))
    assert recomputed == [False, True]


def test_work_that_does_not_fit_is_begun_again_with_less(tmp_path: Path) -> None:
    policy = policy_of(tmp_path)
    policy.pack()
    ids, chosen = group(2)
    longest = max(map(len, ids))
    tried: list[tuple[int, bool]] = []

    def work(fits: Callable[[int], bool]) -> Callable[[Sequence[Any]], Generator[None, None, str]]:
        def begun(batches: Sequence[Any]) -> Generator[None, None, str]:
            tried.append((max(len(batch.tokens) for batch in batches), policy.recomputing))
            yield
            if not fits(tried[-1][0]):
                raise torch.OutOfMemoryError("as scripted")
            return "done"

        return begun

    def outcome(fits: Callable[[int], bool]) -> str:
        running = policy.in_batches(ids, chosen, 4 * longest, work(fits))
        while True:
            try:
                next(running)
            except StopIteration as end:
                return str(end.value)

    assert outcome(lambda tokens: tokens <= 2 * longest) == "done"
    assert [again for _, again in tried] == [False] * len(tried)
    assert policy.batch_tokens(4 * longest) == 2 * longest  # it stays careful
    assert outcome(lambda _: policy.recomputing) == "done"
    assert tried[-1] == (tried[-2][0], True)
    with pytest.raises(torch.OutOfMemoryError):
        outcome(lambda _: False)
