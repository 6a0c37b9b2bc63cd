"""Figures about the sampler's work and load, for monitoring the engine."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields


@dataclass(slots=True)
class Counts:
    """Counters over all weights since the engine started. The sampling thread changes them; any thread can read
    them."""

    decode_steps: int = 0
    """Number of decode steps. Each gives every conversation of a batch its next token."""
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    """Number of prompt tokens computed."""
    reused_tokens: int = 0
    """Number of prompt tokens found in the cache."""


@dataclass(frozen=True, slots=True)
class SamplingFigures:
    """The sampler's current state and its counters."""

    batch_size: int
    """Number of conversations that are decoded together."""
    requests_waiting: int
    """Number of requests that wait for a row or whose prompt is being computed."""
    cache_tokens: int
    """Number of tokens whose keys and values are cached."""
    cache_capacity_tokens: int
    """Number of tokens that the caches have room for."""
    cache_bytes: int
    """Memory that the caches can come to take, in bytes."""
    decode_steps: int = 0
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    reused_tokens: int = 0


def total(parts: Iterable[SamplingFigures]) -> SamplingFigures:
    """Return the sums of several samplers' figures."""
    dumped = [asdict(part) for part in parts]
    return SamplingFigures(
        **{figure.name: sum(part[figure.name] for part in dumped) for figure in fields(SamplingFigures)}
    )
