"""A bound on how far one step moves the policy. Part of a step that went further is taken back.

Clipping does not bound it. In the first of several steps on the same samples all ratios are 1, and the size of Adam's
steps does not depend on the gradient's norm: the first few, averages of few noisy gradients, are several times larger
than later ones (Ma & Yarats 2019). One of them can unlearn the form of a tool call, and a policy whose replies are all
malformed has no differing rewards to recover with. The effect of the step is therefore measured, as in TRPO's line
search (Schulman et al. 2015, appendix C), in the units of PPO's early stopping: the mean KL divergence of a sampled
token.

A mean over tokens does not bound what happens to a whole rollout, whose divergence is the sum over its tokens: a token
on which all depends, such as the one that opens a call, is one of hundreds. The second bound is on the mean of these
sums. By the data processing inequality, no success rate p can fall to a q with p log(p / q) + (1 - p) log((1 - p) /
(1 - q)) above it.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from learnloop_service.training.engine.trainer.policy import Policy
from learnloop_service.training.engine.trainer.trajectories import TrainSequence
from learnloop_service.training.protocol.model_facts import MeasuredToken

_AIM = 2 / 3
"""Fraction of the bound that a step is shortened to, so that the next measurement is usually the last."""
_LEAST = 0.1
"""Smallest share of a step that remains after it is shortened once."""
_MEASURED = 16
"""Number of sequences at which a step is measured, so that the forward pass costs little."""
_MOST_CUTS = 6
_KEPT = 5
"""Number of measured tokens that are kept, so that the sampler can be compared at them: enough for a median that does
not follow one that rounding moved far. Each costs its prompt again."""
_LONGEST = 4096
"""Most tokens of a sequence, up to and including the measured token, that are kept."""

T = TypeVar("T")


def keep_within(
    policy: Policy,
    items: Sequence[TrainSequence],
    before: Mapping[int, Tensor],
    max_kl: float,
    progress: T,
    max_rollout_kl: float | None = None,
    *,
    micro_batch_tokens: int | None,
) -> Generator[T, None, dict[str, float]]:
    """Shorten the optimizer's last step until it moved the policy by at most `max_kl` a token, and `max_rollout_kl` a
    conversation if that is given. Yields `progress` after every micro-batch.

    `before` has the log-probabilities [N] of the trained tokens before the step, by item number, for the items that are
    this trainer's share. Some of all items are measured, spread evenly. Returns `step_kl` and
    `rollout_kl`, the divergence that the step caused for a token and for a conversation, and `step_share`, the fraction
    of the step that is left. The tokens that it moved most are kept in `policy.measured`.
    """
    chosen = [number for number in range(0, len(items), math.ceil(len(items) / _MEASURED)) if number in before]
    measured, old = [items[number] for number in chosen], [before[number] for number in chosen]
    share = 1.0
    bounds = (max_kl, math.inf if max_rollout_kl is None else max_rollout_kl)
    *divergences, after = yield from _divergence(policy, measured, old, progress, micro_batch_tokens)
    for _ in range(_MOST_CUTS):
        kl, most = max(zip(divergences, bounds, strict=True), key=lambda pair: pair[0] / pair[1])
        if kl <= most:
            break
        # The divergence grows with the square of a small step. If it is not finite, only the direction is known.
        remaining = max(_LEAST, math.sqrt(_AIM * most / kl)) if math.isfinite(kl) else _LEAST
        policy.optimizer.take_back(share * (1 - remaining))
        share *= remaining
        *divergences, after = yield from _divergence(policy, measured, old, progress, micro_batch_tokens)
    policy.measured = _moved_most(measured, old, after)
    return {"step_kl": divergences[0], "rollout_kl": divergences[1], "step_share": share}


def _moved_most(
    items: Sequence[TrainSequence], before: Sequence[Tensor], after: Mapping[int, Tensor]
) -> tuple[MeasuredToken, ...]:
    """Return the token that moved most of each sequence, for those in which it moved most."""
    moved = []
    for number, now in after.items():
        item, old = items[number], before[number].tolist()
        tokens = [
            MeasuredToken(item.ids[: position + 1], recorded, was, value)
            for position, recorded, was, value in zip(item.trained, item.logprobs, old, now.tolist(), strict=True)
            if position < _LONGEST
        ]
        moved += [max(tokens, key=lambda token: token.moved)] if tokens else []
    return tuple(sorted(moved, key=lambda token: -token.moved)[:_KEPT])


def _divergence(
    policy: Policy,
    items: Sequence[TrainSequence],
    before: Sequence[Tensor],
    progress: T,
    micro_batch_tokens: int | None,
) -> Generator[T, None, tuple[float, float, dict[int, Tensor]]]:
    """Return Schulman's k3 estimate of KL(before || now) per token and per sequence, in nats, and the log-probabilities
    now by sequence number."""
    total, tokens, after = 0.0, 0.0, dict[int, Tensor]()
    ids, trained = [item.ids for item in items], [item.trained for item in items]
    for now, parts in (yield from policy.score(ids, trained, micro_batch_tokens, progress)):
        change = now - torch.cat([before[number] for number in parts])
        total += float((torch.expm1(change) - change).sum())
        tokens += len(change)
        after |= parts
    total, tokens, sequences = yield from policy.peers.totals([total, tokens, len(items)], progress)
    return total / tokens, total / sequences, after
