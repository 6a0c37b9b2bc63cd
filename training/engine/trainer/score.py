"""Exact log-probabilities of given tokens, from forward passes as the trainer makes them."""

from collections.abc import Generator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from learnloop_service.training.engine.trainer.padded_batches import Batch
from learnloop_service.training.engine.trainer.policy import Policy

T = TypeVar("T")


def score(
    policy: Policy,
    ids: Sequence[Sequence[int]],
    chosen: Sequence[Sequence[int]],
    progress: T,
    *,
    micro_batch_tokens: int | None,
) -> Generator[T, None, list[tuple[Tensor, dict[int, Tensor]]]]:
    """Return for each batch of sequences the log-probabilities [N] of its tokens at the positions `chosen`, and their
    parts by sequence number. Yields `progress` after every batch."""

    def logprobs(batch: Batch) -> Tensor:
        with torch.no_grad():
            return batch.logprobs(policy.model)[0]

    def passes(batches: Sequence[Batch]) -> Generator[T, None, list[tuple[Tensor, dict[int, Tensor]]]]:
        scored = []
        for batch, values in zip(batches, policy.lanes.map(logprobs, batches), strict=True):
            parts = torch.split(values, [len(chosen[number]) for number in batch.members])
            scored.append((values, dict(zip(batch.members, parts, strict=True))))
            yield progress
        return scored

    return (yield from policy.in_batches(ids, chosen, micro_batch_tokens, passes))
