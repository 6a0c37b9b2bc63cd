"""Selects the next token: temperature, cuts, and randomness that depends on the request rather than on the batch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from learnloop_service.training.engine.memory import uploaded

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The tokens that some rows may sample."""

    rows: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint8]
    """A bitmask for each of `rows`, with one bit per token id, lowest first. Ids beyond its end are not allowed."""


def uniforms(seeds: npt.NDArray[np.uint64], counts: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return the `counts[i]`-th number in [0, 1) of the stream `seeds[i]`, computed directly with SplitMix64 (Steele et
    al. 2014).

    Numbers have 23 bits, so that their product with any float32 total stays below that total and the inverse
    distribution function never runs past its end.
    """
    state = _mixed(seeds) + (counts + np.uint64(1)) * _GOLDEN
    return ((_mixed(state) >> np.uint64(41)).astype(np.float32)) * np.float32(2.0**-23)


def sample_tokens(
    logits: torch.Tensor,
    temperature: npt.NDArray[np.float32],
    top_p: npt.NDArray[np.float32],
    top_k: npt.NDArray[np.int64],
    min_p: npt.NDArray[np.float32],
    uniform: npt.NDArray[np.float32],
    allowed: Allowed | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one token id per row, [M], and the log-softmax of the logits, [M, vocab].

    `logits` are [M, vocab] float32, the other tensors [M]. A temperature of 0 takes the most likely token. Otherwise
    the token is the inverse distribution function of softmax(logits / temperature) at `uniform`, after three cuts, each
    of which keeps at least one token. `min_p` above 0 keeps tokens that are at least that many times as likely as the
    most likely one; `top_k` above 0 keeps at most that many of the most likely ones; `top_p` below 1 keeps the most
    likely of the remaining ones whose probabilities sum to at least that. Tokens excluded by `allowed` get a
    probability of 0 beforehand. The log-probabilities are the model's own and unaffected by all of this. A row's result
    does not depend on the other rows.
    """

    def column(values: npt.NDArray[Any]) -> torch.Tensor:
        return uploaded(values, logits.device)[:, None]

    logprobs = torch.log_softmax(logits, dim=-1)
    if allowed is not None:
        logits = _masked(logits, allowed)
    greedy = temperature == 0
    if greedy.all():
        return logits.argmax(dim=-1), logprobs
    divided = logits if (temperature == 1).all() else logits / column(np.where(greedy, np.float32(1), temperature))
    probabilities = torch.softmax(divided, dim=-1)
    limited = np.flatnonzero(((top_k > 0) | (min_p > 0)) & ~greedy)
    if len(limited):
        most = np.where(top_k > 0, top_k, logits.shape[1])
        probabilities[limited] = _likeliest(probabilities[limited], column(most[limited]), column(min_p[limited]))
    cut = np.flatnonzero((top_p < 1) & ~greedy)
    if len(cut):
        probabilities[cut] = _nucleus(probabilities[cut], column(top_p[cut]))
    cumulative = probabilities.cumsum(dim=-1)
    target = cumulative[:, -1:] * column(uniform)
    # Only non-finite logits run past the end, and their log-probabilities reveal it.
    ids = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logits.shape[1] - 1)
    if greedy.any():
        ids = torch.where(uploaded(greedy, ids.device), logits.argmax(dim=-1), ids)
    return ids, logprobs


def _masked(logits: torch.Tensor, allowed: Allowed) -> torch.Tensor:
    device, vocab = logits.device, logits.shape[1]
    missing = max(0, -(-vocab // 8) - allowed.bits.shape[1])
    bits = uploaded(np.pad(allowed.bits, ((0, 0), (0, missing))), device)
    flags = (bits[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=device)) & 1
    rows = uploaded(allowed.rows, device)
    masked = logits.clone()
    masked[rows] = logits[rows].masked_fill(flags.flatten(1)[:, :vocab] == 0, -torch.inf)
    return masked


def _likeliest(probabilities: torch.Tensor, most: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    retained = ordered * ((rank < most) & (ordered >= min_p * ordered[:, :1]))
    return torch.zeros_like(probabilities).scatter_(-1, order, retained / retained.sum(dim=-1, keepdim=True))


def _nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    is_inside = before < top_p
    is_inside[:, 0] = True
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered * is_inside)


def _mixed(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
