"""Exact log-probabilities of given tokens, from forward passes as the trainer makes them."""

from collections.abc import Generator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from learnloop_service.training.engine.trainer.padded_batches import Batch
from learnloop_service.training.engine.trainer.policy import Policy

T = TypeVar("T")
BatchScores = tuple[Tensor, dict[int, Tensor]]
"""Log-probabilities [N] of a batch's chosen tokens, and the parts of it by the numbers of their sequences."""


def score(
    policy: Policy, ids: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], most_tokens: int | None, progress: T
) -> Generator[T, None, list[BatchScores]]:
    """Score the tokens at the positions `chosen` of each sequence, in batches of at most `most_tokens` tokens (see
    Policy.in_batches). Yields `progress` after every batch."""

    def logprobs(batch: Batch) -> Tensor:
        with torch.no_grad():
            return batch.logprobs(policy.model)[0]

    def passes(batches: Sequence[Batch]) -> Generator[T, None, list[BatchScores]]:
        scored = []
        for batch, values in zip(batches, policy.lanes.map(logprobs, batches), strict=True):
            parts = torch.split(values, [len(chosen[number]) for number in batch.members])
            scored.append((values, dict(zip(batch.members, parts, strict=True))))
            yield progress
        return scored

    return (yield from policy.in_batches(ids, chosen, most_tokens, passes))
