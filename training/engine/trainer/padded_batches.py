"""Log-probabilities, with gradient, of chosen positions of padded token sequences, from any Hugging Face causal LM."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:  # the import takes long, and not all models need it
    from transformers import PreTrainedModel


class Batch(Protocol):
    """Some of a step's sequences, for one forward and backward pass.

    `members` are their numbers in the list that was cut. `sequence` [N] is the index in `members` to which each chosen
    token belongs, in order of members.
    """

    @property
    def members(self) -> tuple[int, ...]: ...
    @property
    def sequence(self) -> Tensor: ...
    def logprobs(self, model: Any) -> tuple[Tensor, Tensor]:
        """Return the log-probability [N] of each chosen token given those before it, and the entropy [N] (detached) of
        its distribution, as float32 natural logarithms at temperature 1."""

    def begin(self, model: Any) -> Callable[[], tuple[Tensor, Tensor]]:
        """Do the work that can be done ahead and return a function that gives the result of `logprobs`."""


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Sequences padded on the right, with `tokens` [B, T]. `position` [N] (> 0) is the position of each chosen
    token."""

    members: tuple[int, ...]
    tokens: Tensor
    sequence: Tensor
    position: Tensor

    def logprobs(self, model: "PreTrainedModel") -> tuple[Tensor, Tensor]:
        """Compute the result like Batch.logprobs.

        Padding is on the right of causal attention, so no mask is needed. Only hidden states that predict chosen tokens
        reach the output head, which is most of the memory for large vocabularies.
        """
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if head is None:
            raise TypeError(f"{type(model).__name__} has no output head, so it is not a causal language model")

        def select(_: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
            return (inputs[0][self.sequence, self.position - 1][None],)

        hook = head.register_forward_pre_hook(select)
        try:
            with torch.autocast(self.tokens.device.type, torch.bfloat16, enabled=self.tokens.device.type == "cuda"):
                logits = model(input_ids=self.tokens, use_cache=False).logits[0].float()
        finally:
            hook.remove()
        normaliser = torch.logsumexp(logits, dim=-1)
        targets = self.tokens[self.sequence, self.position]
        logprobs = logits.gather(-1, targets[:, None])[:, 0] - normaliser
        with torch.no_grad():
            probabilities = torch.exp(logits - normaliser[:, None])
            entropy = normaliser - (probabilities * logits).sum(-1)
        return logprobs, entropy

    def begin(self, model: "PreTrainedModel") -> Callable[[], tuple[Tensor, Tensor]]:
        """Return a function that computes `logprobs`; nothing is done ahead."""
        return partial(self.logprobs, model)


def padded_batches(
    ids: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], max_tokens: int, device: torch.device
) -> Iterator[PaddedBatch]:
    """Cut sequences into batches of at most `max_tokens` tokens including padding (a single longer sequence is
    allowed).

    Sorting by length keeps the padding small. The cut depends only on the lengths and their order.
    """
    order = sorted(range(len(ids)), key=lambda number: (len(ids[number]), number))
    members: list[int] = []
    for number in order:
        if members and len(ids[number]) * (len(members) + 1) > max_tokens:
            yield _padded(members, ids, chosen, device)
            members = []
        members.append(number)
    if members:
        yield _padded(members, ids, chosen, device)


def _padded(
    members: list[int], ids: Sequence[Sequence[int]], chosen: Sequence[Sequence[int]], device: torch.device
) -> PaddedBatch:
    width = max(len(ids[number]) for number in members)
    tokens = torch.tensor([[*ids[number], *[0] * (width - len(ids[number]))] for number in members])
    sequence = torch.tensor([row for row, number in enumerate(members) for _ in chosen[number]], dtype=torch.long)
    position = torch.tensor([position for number in members for position in chosen[number]], dtype=torch.long)
    return PaddedBatch(tuple(members), tokens.to(device), sequence.to(device), position.to(device))
