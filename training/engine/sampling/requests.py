"""Requests to the sampler, their results and errors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from learnloop_service.training.protocol.full_context import full_context_message

if TYPE_CHECKING:  # the grammar parser is loaded when first needed
    from learnloop_service.training.engine.sampling.constraint import Grammar

GRAMMAR_S = 5.0
"""Limit of processor time for enforcing the grammar of a request, in all of its replies together."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request for one reply to one prompt."""

    prompt: tuple[int, ...]
    weights_key: str
    max_tokens: int
    """Maximum number of tokens, at least 1. It is reduced to what the context has left."""
    temperature: float = 1.0
    """Sampling temperature. 0 takes the most likely token each time."""
    top_p: float = 1.0
    """Share of the probability mass to sample from, in (0, 1]."""
    top_k: int = 0
    """Number of most likely tokens to sample from. 0 means no limit."""
    min_p: float = 0.0
    """Smallest probability relative to that of the most likely token, in [0, 1]."""
    seed: int | None = None
    """Seed of the reply. The same seed gives the same reply; None takes a new one, which the Sample reports."""
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    top_logprobs: int = 0
    grammar: "Grammar | None" = None
    """Grammar that the reply must conform to."""
    grammar_s: float = GRAMMAR_S
    """Limit of processor time for enforcing the grammar. Each token adds to it (see ReplyMasks)."""
    call: str | None = None
    """Id of the call whose reply this is. The replies of one call get no more than its fair share of the batch; None is
    a call with one reply."""


@dataclass(slots=True)
class Sample:
    """The sampled tokens, including the stop token if one was sampled.

    `logprobs` are the model's own log-softmax at each token in float32, regardless of temperature, top_p, top_k, min_p
    and grammar. They equal those of the sampled distribution exactly when all of these have their defaults. Training
    compares them with the log-softmax of the model being trained, which does not depend on these settings either. `top`
    has the most likely (id, logprob) pairs for each token.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    seed: int
    prompt_tokens: int
    cached_tokens: int = 0
    """Number of prompt tokens that needed no computation, because a cached conversation began with them."""
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    stop_text: str | None = None
    """The stop string that ended the sample; its tokens are still in `ids`."""


class SamplingError(Exception):
    """A request failed to give a sample. The sampler keeps running."""


class ContextTooLong(SamplingError):
    """The prompt leaves no room for even one token."""

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__(full_context_message(prompt_tokens, context))
        self.prompt_tokens = prompt_tokens
        self.context = context


class UnknownWeights(SamplingError):
    """No weights of that key are loaded, or they were dropped before the sample was finished."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no weights {key!r} are loaded")


class OutOfMemory(SamplingError):
    """The request does not fit into memory, even with fewer conversations in the batch."""


class NonFiniteLogits(SamplingError):
    """The weights produce NaN or infinite log-probabilities."""


class GrammarFailed(SamplingError):
    """The reply cannot be constrained to its grammar any further within the limits."""


class SampleCancelled(SamplingError):
    """The request was cancelled."""


class SamplerUnavailable(SamplingError):
    """The process that samples is down, failed on this request or gave an invalid answer. A later request can
    succeed."""


class NotSampledThere(SamplingError):
    """The process that samples cannot load these weights. The message says what to do."""


OnToken = Callable[[int, float], None]
Done = Callable[[Sample | Exception], None]
