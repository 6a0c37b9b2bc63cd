"""Log-probabilities of chosen positions of token sequences, with gradient, from any Hugging Face causal LM."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences padded on the right. `members` are their numbers in the list that was cut up.

    `tokens` is [B, T]. For each of the N chosen tokens, members in order: `row` [N] and `position` [N] (> 0) say where
    it stands, `sequence` [N] = row.
    """

    members: tuple[int, ...]
    tokens: Tensor
    row: Tensor
    position: Tensor


def micro_batches(
    ids: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], max_tokens: int, device: torch.device
) -> Iterator[MicroBatch]:
    """Cut sequences into batches of at most `max_tokens` tokens, padding counted (one sequence may be longer).

    They are sorted by length, so that little is padded; the cut depends on the lengths and their order only.
    """
    order = sorted(range(len(ids)), key=lambda number: (len(ids[number]), number))
    members: list[int] = []
    for number in order:
        if members and len(ids[number]) * (len(members) + 1) > max_tokens:
            yield _micro_batch(members, ids, chosen, device)
            members = []
        members.append(number)
    if members:
        yield _micro_batch(members, ids, chosen, device)


def _micro_batch(
    members: list[int], ids: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], device: torch.device
) -> MicroBatch:
    width = max(len(ids[number]) for number in members)
    tokens = torch.tensor([[*ids[number], *[0] * (width - len(ids[number]))] for number in members])
    row = torch.tensor([row for row, number in enumerate(members) for _ in chosen[number]], dtype=torch.long)
    position = torch.tensor([position for number in members for position in chosen[number]], dtype=torch.long)
    return MicroBatch(tuple(members), tokens.to(device), row.to(device), position.to(device))


def token_logprobs(model: PreTrainedModel, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probability [N] of each chosen token given those before it, and the entropy [N] (detached) of its
    distribution; fp32, natural logarithms, at temperature 1.

    Padding is on the right of causal attention, so no mask is needed. Only hidden states that predict chosen tokens
    reach the output head, which for large vocabularies is most of the memory.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if head is None:
        raise TypeError(f"{type(model).__name__} has no output head, so it is not a causal language model")

    def select(_: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        return (inputs[0][batch.row, batch.position - 1][None],)

    hook = head.register_forward_pre_hook(select)
    try:
        with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=batch.tokens.device.type == "cuda"):
            logits = model(input_ids=batch.tokens, use_cache=False).logits[0].float()
    finally:
        hook.remove()
    normaliser = torch.logsumexp(logits, dim=-1)
    targets = batch.tokens[batch.row, batch.position]
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - normaliser
    with torch.no_grad():
        probabilities = torch.exp(logits - normaliser[:, None])
        entropy = normaliser - (probabilities * logits).sum(-1)
    return logprobs, entropy
