"""The loss compared with ART's, on the same tokens."""

import math
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from learnloop_service.training.engine.trainer.grpo_loss import BadOptions, TrainedTokens, TrainOptions, policy_loss
from learnloop_service.training.engine.trainer.trajectories import NothingToTrain, TrainSequence, normalised

OPTIONS: list[dict[str, Any]] = [
    {},
    {"epsilon": 0.1},
    {"epsilon": 0.1, "epsilon_high": 0.3},
    {"ppo": True},
    {"ppo": True, "epsilon": 0.3},
    {"ppo": True, "epsilon": 0.1, "epsilon_high": 0.4},
    *({"importance_sampling_level": level} for level in ("sequence", "average", "geometric_average")),
    *({"importance_sampling_level": level, "ppo": True} for level in ("sequence", "average", "geometric_average")),
    {"mask_prob_ratio": True, "epsilon": 0.2, "epsilon_high": 0.2},
    {"mask_prob_ratio": True, "ppo": True, "importance_sampling_level": "average"},
    {"max_negative_advantage_importance_sampling_weight": 0.9},
    {"max_negative_advantage_importance_sampling_weight": 1.1, "ppo": True},
    {"kimi_k2_tau": 0.3},
    {"kl_penalty_coef": 0.2},
    {"kl_penalty_coef": 0.2, "kimi_k2_tau": 0.1, "ppo": True, "importance_sampling_level": "sequence"},
    {"truncated_importance_sampling": 1.05},
    {"truncated_importance_sampling": 1.05, "precalculate_logprobs": True},
    {"truncated_importance_sampling": 2.0, "ppo": True, "precalculate_logprobs": True},
    {"advantage_balance": 0.4},
    {"advantage_balance": -0.7, "ppo": True},
]


def _sequences(seed: int) -> list[TrainSequence]:
    """Conversations of different lengths with two stretches of sampled tokens each."""
    generator = random.Random(seed)
    items = []
    for number in range(6):
        length = generator.randrange(12, 30)
        trained = tuple(sorted(generator.sample(range(1, length), length // 2)))
        items.append(
            TrainSequence(
                ids=tuple(generator.randrange(50) for _ in range(length)),
                trained=trained,
                logprobs=tuple(-generator.uniform(0.05, 3.0) for _ in trained),
                advantage=generator.uniform(-2, 2),
                weight=1 / (len(trained) * (1 + number % 2) + 1e-6),
            )
        )
    return items


def _near(logprobs: torch.Tensor, seed: int, spread: float) -> torch.Tensor:
    """Log-probabilities of a policy close by."""
    noise = torch.empty_like(logprobs).normal_(0.0, spread, generator=torch.Generator().manual_seed(seed))
    return (logprobs + noise).clamp(max=-0.01)


def _art_loss(
    items: list[TrainSequence],
    new: torch.Tensor,
    ref: torch.Tensor | None,
    original: torch.Tensor | None,
    options: dict[str, Any],
) -> tuple[torch.Tensor, float | None]:
    """ART's loss of one packed row, made by its own packing; the last value is its KL to the reference."""
    from art.loss import loss_fn
    from art.preprocessing.pack import packed_tensors_from_tokenized_results
    from art.preprocessing.tokenize import TokenizedResult

    results = []
    for number, item in enumerate(items):
        logprobs = [float("nan")] * len(item.ids)
        for position, value in zip(item.trained, item.logprobs, strict=True):
            logprobs[position] = value
        result = TokenizedResult(
            advantage=item.advantage,
            chat="",
            token_ids=list(item.ids),
            input_pos=list(range(len(item.ids))),
            assistant_mask=[int(position in item.trained) for position in range(len(item.ids))],
            logprobs=logprobs,
            pixel_values=None,
            image_grid_thw=None,
            trajectory=cast(Any, SimpleNamespace()),
            choice_offsets=[],
            extra_logprobs={},
            _tokenizer=cast(Any, None),
            weight=item.weight,
            prompt_id=number,
        )
        results.append(result)
    total = sum(len(item.ids) for item in items)
    packed: dict[str, Any] = dict(
        packed_tensors_from_tokenized_results(
            results, total, advantage_balance=options.get("advantage_balance", 0.0), verbosity=0
        )
    )
    places = torch.tensor([start + position for start, item in _starts(items) for position in item.trained])

    def row(values: torch.Tensor, shift: int, fill: float) -> torch.Tensor:
        return torch.full((1, total), fill).index_put((torch.zeros_like(places), places - shift), values)

    if original is not None:
        packed["original_logprobs"] = packed["logprobs"]
        packed["logprobs"] = row(original, 0, float("nan"))
    loss = loss_fn(
        cast(Any, packed), row(new, 1, -1.0), None if ref is None else row(ref, 1, -1.0), None, cast(Any, options)
    )
    return loss.policy_loss, None if loss.kl_policy_ref is None else float(loss.kl_policy_ref)


def _starts(items: list[TrainSequence]) -> list[tuple[int, TrainSequence]]:
    starts, start = [], 0
    for item in items:
        starts.append((start, item))
        start += len(item.ids)
    return starts


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradient_equal_arts(options: dict[str, Any], seed: int) -> None:
    items = _sequences(seed)
    sampled = torch.tensor([value for item in items for value in item.logprobs])
    old = _near(sampled, seed + 10, 0.1) if options.get("precalculate_logprobs") else sampled
    new = _near(sampled, seed + 20, 0.4).requires_grad_()
    ref = _near(sampled, seed + 30, 0.4) if options.get("kl_penalty_coef") else None
    theirs, their_kl = _art_loss(items, new, ref, old if options.get("precalculate_logprobs") else None, options)
    (their_gradient,) = torch.autograd.grad(theirs, new)

    parsed = TrainOptions.from_config(options)
    scaled = normalised(items, advantage_balance=parsed.advantage_balance, by_trajectory=True)
    sequence = torch.tensor([number for number, item in enumerate(items) for _ in item.trained])
    tokens = TrainedTokens(
        old_logprobs=old,
        advantages=torch.tensor([advantage for advantage, _ in scaled])[sequence],
        weights=torch.tensor([weight for _, weight in scaled])[sequence],
        sequence=sequence,
        original_logprobs=sampled if parsed.precalculate_logprobs else None,
    )
    ours = policy_loss(tokens, new, parsed, ref_logprobs=ref).total / (len(sequence) + 1e-6)
    (our_gradient,) = torch.autograd.grad(ours, new)

    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    assert torch.allclose(our_gradient, their_gradient, atol=1e-6, rtol=0)
    if their_kl is not None and ref is not None:
        assert (new - ref).mean().item() == pytest.approx(their_kl, abs=1e-5)


def test_a_given_centre_of_the_kl_penalty_replaces_the_batchs_own() -> None:
    tokens = TrainedTokens(torch.zeros(2), torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.long))
    new, ref = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.5])
    options = TrainOptions(kl_penalty_coef=1.0)
    assert policy_loss(tokens, new, options, ref_logprobs=ref).total == pytest.approx(0.0, abs=1e-6)
    shifted = policy_loss(tokens, new, options, ref_logprobs=ref, mean_kl=1.5)
    # CISPO's ratio is exp(new - 0), the penalty 1.5 - 0.5.
    assert float(shifted.total) == pytest.approx(1.0 * math.exp(-1) * 1 + 1.0 * math.exp(-2) * 2)


def test_token_weighting_gives_every_token_the_same_weight() -> None:
    items = _sequences(3)
    scaled = normalised(items, advantage_balance=0.0, by_trajectory=False)
    assert {weight for _, weight in scaled} == {1.0}
    total = sum(len(item.trained) for item in items)
    magnitude = sum(abs(a) * w * len(item.trained) for (a, w), item in zip(scaled, items, strict=True))
    assert magnitude / total == pytest.approx(1.0)


def test_balancing_everything_away_leaves_nothing_to_train() -> None:
    item = TrainSequence((1, 2), (1,), (-1.0,), -1.0, 1.0)
    with pytest.raises(NothingToTrain):
        normalised([item], advantage_balance=1.0, by_trajectory=True)
    with pytest.raises(NothingToTrain):
        normalised([], advantage_balance=0.0, by_trajectory=True)


def test_none_means_default_and_clip_ranges_are_arts() -> None:
    assert TrainOptions.from_config({"epsilon": None, "ppo": None}) == TrainOptions()
    assert TrainOptions().clip_range == (0.0, 5.0)
    assert TrainOptions(ppo=True).clip_range == pytest.approx((0.8, 1.2))
    assert TrainOptions(ppo=True, epsilon=0.1).clip_range == pytest.approx((0.9, 1.1))
    assert TrainOptions(epsilon=0.1).clip_range == pytest.approx((0.9, 5.0))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"epsilonn": 0.1, "zeta": 1}, "epsilonn, zeta"),
        ({"epsilon": -1}, "epsilon"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"importance_sampling_level": "word"}, "importance_sampling_level"),
        ({"advantage_balance": 1.5}, "advantage_balance"),
    ],
)
def test_bad_options_are_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(BadOptions, match=named):
        TrainOptions.from_config(config)


@pytest.mark.parametrize(("epsilon", "is_masked"), [(1.0, True), (0.2, False)])
def test_cispo_masks_tokens_whose_ratio_is_too_high_only_with_epsilon_1(epsilon: float, is_masked: bool) -> None:
    """A masked ratio is 0, and is then clipped to at least 1 - epsilon, which leaves a weight unless epsilon is 1."""
    options = TrainOptions(
        mask_prob_ratio=True, epsilon=epsilon, epsilon_high=3.0, scale_rewards=False, token_weighting="token"
    )
    ratios = torch.tensor([0.5, 1.0, 3.9, 4.1, 50.0])
    new = torch.full((5,), -2.0).requires_grad_()
    tokens = TrainedTokens(
        new.detach() - ratios.log(),
        advantages=torch.full((5,), -0.5),
        weights=torch.ones(5),
        sequence=torch.zeros(5, dtype=torch.long),
    )
    (gradient,) = torch.autograd.grad(policy_loss(tokens, new, options).total, new)
    weights = gradient / 0.5
    assert weights[:3].tolist() == pytest.approx([max(0.5, 1 - epsilon), 1.0, 3.9])
    assert weights[3:].tolist() == pytest.approx([0.0, 0.0] if is_masked else [1 - epsilon] * 2)


def test_tokens_that_were_hardly_sampled_have_no_gradient_and_the_others_theirs() -> None:
    new = torch.linspace(-12.0, 0.0, 49).requires_grad_()
    tokens = TrainedTokens(
        _near(new.detach(), 1, 0.1),
        advantages=torch.where(torch.arange(49) % 2 == 0, 1.0, -0.5),
        weights=torch.ones(49),
        sequence=torch.arange(49) // 7,
    )
    gradients = {}
    for least in (0.0, 0.01):
        options = TrainOptions(min_probability=least, token_weighting="token")
        (gradients[least],) = torch.autograd.grad(policy_loss(tokens, new, options).total, new)
    is_likely = tokens.old_logprobs.exp() >= 0.01
    assert 10 < is_likely.sum() < 39
    assert gradients[0.0].count_nonzero() == 49
    assert torch.equal(gradients[0.01], torch.where(is_likely, gradients[0.0], 0.0))
