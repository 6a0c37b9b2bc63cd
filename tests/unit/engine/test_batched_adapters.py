"""Several adapters of one base in one batch: each conversation is what it is with its adapter alone.

The forward pass is that of a GPU, its kernels in plain torch (tests/fakes/cuda_kernels.py).
"""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from learnloop_service.training.engine.sampling.requests import NonFiniteLogits, SampleRequest, UnknownWeights
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.grpo_step import grpo_step
from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.trajectories import TrainSequence
from learnloop_service.training.engine.weights.joined import Adapter
from learnloop_service.training.engine.weights.paged_cache import PAGE
from learnloop_service.training.tuning import Tuning
from tests.fakes.cuda_kernels import cuda_weights
from tests.unit.engine.adapter_batches import CPU, RANKS, Base, alone, assert_as_alone, outcomes, prompt_of, sampler_of


@pytest.fixture
def weights(monkeypatch: pytest.MonkeyPatch) -> Any:
    return cuda_weights(monkeypatch)


def mixed_requests(keys: Sequence[str], count: int, seed: int) -> list[SampleRequest]:
    """Conversations that begin alike, each with any of the weights."""
    draw = random.Random(seed)
    shared = prompt_of(80, seed=99)
    return [
        SampleRequest(
            shared[: draw.choice([0, 70, 80])] + prompt_of(draw.randrange(1, 40), seed=number % 3),
            draw.choice(keys),
            draw.randrange(1, 12),
            seed=number,
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("family", "ranks", "stages", "adapters"),
    [("qwen3", 10, 1, 4), ("qwen2", 10, 2, 4), ("llama", 5, 1, 5), ("qwen3", 4, 2, 4)],
    ids=["all fit", "all fit, in stages", "some fit", "few fit"],
)
def test_each_conversation_is_what_it_is_alone(
    tmp_path: Path, weights: Any, family: str, ranks: int, stages: int, adapters: int
) -> None:
    base = Base(tmp_path, weights, ranks, family, stages)
    members = {f"agent@{number}": base.weights(number) for number in range(adapters)}
    sampler = sampler_of(members, slots=16)
    for seed in range(2):  # the second time much of it is in the cache, and it may be another's
        requests = mixed_requests(list(members), 12, seed)
        assert_as_alone(members, requests, outcomes(sampler, requests))


def test_those_that_fit_are_prefilled_and_decoded_together(
    tmp_path: Path, weights: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Base(tmp_path, weights, sum(RANKS))
    members = {f"agent@{number}": base.weights(number) for number in range(4)}
    steps: list[int] = []
    passes: list[int] = []
    step, prefill = weights._step, weights._prefill

    def counted(self: Any, cache: Any, ids: Any, positions: torch.Tensor, *rest: Any) -> Any:
        steps.append(int((positions >= 0).sum()))
        return step(self, cache, ids, positions, *rest)

    def prefilled(self: Any, cache: Any, pieces: Sequence[Any], *rest: Any) -> None:
        passes.append(len(pieces))
        prefill(self, cache, pieces, *rest)

    monkeypatch.setattr(weights, "_step", counted)
    monkeypatch.setattr(weights, "_prefill", prefilled)
    requests = [SampleRequest(prompt_of(60, 0), key, 6, seed=0) for key in members]
    outcomes(sampler_of(members), requests)
    assert passes == [4]
    assert steps == [4] * 6
    assert base.joined.ranges([]) is not None
    steps.clear()
    outcomes(sampler_of(members), requests[:1])
    assert steps == [1] * 6
    assert base.joined.ranges([]) is None, "one alone needs no mask"
    steps.clear()
    base.joined.ranks = 4  # nothing was placed that would not fit any more
    base.joined.use(None)
    outcomes(sampler_of(members), requests[:2])
    assert steps == [1] * 12


def test_conversations_are_shared_only_within_one_adapter_and_step(tmp_path: Path, weights: Any) -> None:
    base = Base(tmp_path, weights, 10)
    members = {f"agent@{number}": base.weights(number) for number in range(2)}
    sampler = sampler_of(members)
    prompt = prompt_of(70, 0)

    def cached(key: str) -> int:
        [sample] = outcomes(sampler, [SampleRequest(prompt, key, 2, seed=0)])
        return int(sample.cached_tokens)

    assert [cached(key) for key in ("agent@0", "agent@1", "agent@0", "agent@1")] == [0, 0, 69, 69]
    sampler.weights("agent@0").update(base.adapted(2))  # type: ignore[union-attr]
    sampler.rename("agent@0", "agent@2")
    assert sampler.figures.cache_tokens == 3 * PAGE, "two rows of agent@1, which share a page"
    assert [cached(key) for key in ("agent@2", "agent@1")] == [0, 69]
    sampler.drop_weights("agent@1")
    assert sampler.figures.cache_tokens == 2 * PAGE
    sampler.set_weights("agent@1", members["agent@1"])
    assert [cached(key) for key in ("agent@1", "agent@2")] == [0, 69]


def test_weights_that_are_dropped_end_only_their_own_conversations(tmp_path: Path, weights: Any) -> None:
    base = Base(tmp_path, weights, 10)
    members = {f"agent@{number}": base.weights(number) for number in range(2)}
    sampler = sampler_of(members)
    outcome_of: dict[str, Any] = {}
    for key in members:
        sampler.submit(SampleRequest(prompt_of(10, 0), key, 8, seed=0), None, partial(outcome_of.__setitem__, key))
    sampler.step()
    sampler.drop_weights("agent@0")
    assert isinstance(outcome_of.pop("agent@0"), UnknownWeights)
    while sampler.busy:
        sampler.step()
    assert_as_alone(members, [SampleRequest(prompt_of(10, 0), "agent@1", 8, seed=0)], [outcome_of["agent@1"]])
    sampler.drop_weights("agent@1")
    assert sampler.figures.cache_bytes == 0


def test_nobody_waits_for_all_of_anothers_requests(tmp_path: Path, weights: Any) -> None:
    base = Base(tmp_path, weights, 10)
    sampler = sampler_of({f"agent@{number}": base.weights(number) for number in range(2)}, slots=8)
    order: list[str] = []
    for number in range(40):
        sampler.submit(SampleRequest(prompt_of(9, number), "agent@0", 3), None, lambda _: order.append("agent@0"))
    sampler.step()
    sampler.submit(SampleRequest(prompt_of(9, 50), "agent@1", 3), None, lambda _: order.append("agent@1"))
    while sampler.busy:
        sampler.step()
    assert len(order) == 41
    assert order.index("agent@1") < 16


def test_an_adapter_that_is_not_finite_spoils_no_other(tmp_path: Path, weights: Any) -> None:
    base = Base(tmp_path, weights, 10)
    broken = base.adapted(1)
    with torch.no_grad():
        for name, parameter in broken.named_parameters():
            if "lora_B" in name:
                parameter.fill_(float("nan"))
    members = {"good": base.weights(0), "broken": weights(broken, CPU, torch.float32), "other": base.weights(2)}
    requests = [SampleRequest(prompt_of(20, 0), key, 6, seed=0) for key in members]
    good, bad, other = outcomes(sampler_of(members), requests)
    assert isinstance(bad, NonFiniteLogits)
    assert_as_alone(members, [requests[0], requests[2]], [good, other])


def test_one_is_trained_while_others_are_sampled(tmp_path: Path, weights: Any) -> None:
    """Sampling runs between the pieces of a step; conversations of the step before end with it."""
    base = Base(tmp_path, weights, 10)
    policy = Policy(base.adapted(0), Tuning("lora", rank=RANKS[0]), Path)
    policy.pack()
    members = {"trained@0": weights(policy.model, CPU, torch.float32), "other@5": base.weights(1)}
    sampler = sampler_of(members)
    requests = [SampleRequest(prompt_of(20, 0), key, 40, seed=seed) for key in members for seed in range(2)]
    outcome_of: dict[int, Any] = {}
    for number, request in enumerate(requests):
        sampler.submit(request, None, partial(outcome_of.__setitem__, number))
    ids = [prompt_of(30, seed) for seed in range(4)]
    items = [
        TrainSequence(sequence, (10, 20), (-3.0, -3.0), (-1.0) ** number, 1.0) for number, sequence in enumerate(ids)
    ]
    pieces = 0
    for _ in grpo_step(policy, items, TrainOptions(learning_rate=0.1), micro_batch_tokens=30):
        sampler.step()
        pieces += 1
    assert pieces > 2
    assert not outcome_of
    members["trained@1"] = weights(policy.model, CPU, torch.float32)
    sampler.set_weights("trained@1", members["trained@1"], successor_of="trained@0")
    newer = SampleRequest(requests[0].prompt, "trained@1", 20, seed=0)
    [first] = outcomes(sampler, [newer])
    assert first.cached_tokens == 0
    assert alone(members, newer).logprobs != pytest.approx(alone(members, requests[0]).logprobs[:20], abs=0.05)
    assert_as_alone(members, [*requests, newer], [*(outcome_of[number] for number in range(4)), first])


def test_places_are_given_up_by_those_not_used_for_longest(tmp_path: Path, weights: Any) -> None:
    joined = Base(tmp_path, weights, 8).joined
    width = [(slot.low.shape[1], slot.high.shape[0]) for slot in joined.slots]
    a, b, c, d = (
        Adapter(tuple((torch.full((ranks, low), 1.0), torch.full((high, ranks), 1.0)) for low, high in width))
        for ranks in (3, 3, 2, 4)
    )

    def placed() -> set[Adapter]:
        return {adapter for adapter in (a, b, c, d) if adapter in joined._placed}

    joined.use_together([a])
    assert joined.ranges([a, None]) is None
    joined.use_together([b])
    joined.use_together([c])
    assert placed() == {a, b, c}
    ranges = joined.ranges([a, b, c, None])
    assert ranges is not None
    spans = [range(start, stop) for start, stop in ranges.tolist()]
    assert [len(span) for span in spans] == [3, 3, 2, 0]
    assert sorted(rank for span in spans for rank in span) == list(range(8))
    joined.use_together([a])
    joined.use_together([d])
    assert placed() == {a, d}
    assert joined.rounds([b, d, a]) == [{d, a}, {b}]
    joined.use(b)
    assert placed() == {b}
    assert joined.ranges([b]) is None
    joined.use(None)
    assert all(not joint.low.any() and not joint.high.any() for layer in joined.layers for joint in layer.joints)
