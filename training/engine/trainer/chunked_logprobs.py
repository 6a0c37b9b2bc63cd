"""Log-probabilities from hidden states, computed for a piece of the batch at a time so that the full logits never exist
in memory."""

from typing import Any

import torch
from torch import Tensor

PIECE_BYTES = 1 << 28
"""Size limit in bytes of the float32 logits held at a time."""


def head_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities [N] of `targets` [N] under softmax(hidden weight^T), and the entropies [N] without
    gradient.

    `hidden` is [N, H] and `weight` [vocab, H]; results are float32 natural logarithms. The backward pass recomputes the
    logits instead of keeping them.
    """
    logprobs, entropy = _HeadLogprobs.apply(hidden, weight, targets)  # type: ignore[no-untyped-call]
    return logprobs, entropy


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        ctx.step = max(1, PIECE_BYTES // (4 * len(weight)))
        logprobs, entropy, normaliser = (torch.empty(len(hidden), device=hidden.device) for _ in range(3))
        for piece in _pieces(len(hidden), ctx.step):
            logits = _logits(hidden[piece], weight)
            normaliser[piece] = torch.logsumexp(logits, dim=-1)
            logprobs[piece] = logits.gather(-1, targets[piece, None])[:, 0] - normaliser[piece]
            shares = torch.exp(logits - normaliser[piece, None])
            entropy[piece] = normaliser[piece] - shares.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, targets, normaliser)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None]:
        hidden, weight, targets, normaliser = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for piece in _pieces(len(hidden), ctx.step):
            slope = torch.exp(_logits(hidden[piece], weight).sub_(normaliser[piece, None])).neg_()
            slope.scatter_add_(-1, targets[piece, None], torch.ones_like(normaliser[piece, None]))
            slope.mul_(grad[piece, None])
            slope = slope.to(hidden.dtype)
            grad_hidden[piece] = slope @ weight.to(hidden.dtype)
            if grad_weight is not None:
                grad_weight += slope.t() @ hidden[piece]
        return grad_hidden, grad_weight, None


def _pieces(count: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, count, step)]


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return float32 logits [n, vocab]. Sums of products of bfloat16 factors are not rounded."""
    weight = weight.to(hidden.dtype)
    if hidden.device.type == "cuda" and hidden.dtype == torch.bfloat16:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return (hidden @ weight.t()).float()
