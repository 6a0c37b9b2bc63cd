"""What sampling has done, and how full it is: for whoever watches the engine."""

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Of all weights, since the engine started. Changed by the thread that samples, may be read from any."""

    decode_steps: int = 0
    """Each gives every conversation of a batch its next token."""
    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    """Of prompts, computed."""
    reused_tokens: int = 0
    """Of prompts, found in the cache."""


@dataclass(frozen=True, slots=True)
class SamplingFigures:
    """How it is now, and the counts."""

    batch_size: int
    """Conversations that are decoded together."""
    requests_waiting: int
    """Requests that wait for a row or for their prompt."""
    cache_tokens: int
    """Tokens whose keys and values are held."""
    cache_capacity_tokens: int
    """Tokens that there is room for."""
    cache_bytes: int
    """Memory that the caches may come to take."""
    decode_steps: int
    sampled_tokens: int
    prefilled_tokens: int
    reused_tokens: int
