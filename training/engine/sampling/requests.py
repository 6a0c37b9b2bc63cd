"""What is asked of the sampler and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # its parser is loaded when it is first needed
    from training.engine.sampling.constraint import Grammar

GRAMMAR_S = 5.0
"""Processor time that it may take to enforce the grammar of a request, in all of its replies together."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One reply to one prompt."""

    prompt: tuple[int, ...]
    weights_key: str
    max_tokens: int
    """At least 1; clipped to what the context leaves."""
    temperature: float = 1.0
    """0 takes the most likely token each time."""
    top_p: float = 1.0
    """In (0, 1]."""
    top_k: int = 0
    """At least 0, which is no limit."""
    min_p: float = 0.0
    """In [0, 1]: a token must be at least that many times as likely as the most likely one."""
    seed: int | None = None
    """The same seed gives the same reply; None takes a fresh one, which the Sample names."""
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    top_logprobs: int = 0
    grammar: "Grammar | None" = None
    """What the reply must keep to."""
    grammar_s: float = GRAMMAR_S
    """Processor time that it may take to enforce the grammar; each token adds some to it (see ReplyMasks)."""


@dataclass(slots=True)
class Sample:
    """The sampled tokens, the stop token included if one was sampled.

    `logprobs` are the model's own log-softmax at each token in float32, whatever temperature, top_p, top_k, min_p and
    grammar were: they are those of the sampled distribution exactly when all of these have their defaults. Training
    compares them with the log-softmax of the model that it trains, which knows nothing of these either. `top` has per
    token the most likely (id, logprob) pairs.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    seed: int
    prompt_tokens: int
    cached_tokens: int = 0
    """Tokens of the prompt that needed no computation, because a conversation in the cache began with them."""
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    stop_text: str | None = None
    """The stop string that ended the sample; its tokens are still in `ids`."""


class SamplingError(Exception):
    """A request that gives no sample. The sampler goes on."""


class ContextTooLong(SamplingError):
    """The prompt leaves no room for a single token."""

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens and the model's context is {context}: no room is left for a reply"
        )
        self.prompt_tokens = prompt_tokens
        self.context = context


class UnknownWeights(SamplingError):
    """No weights of that key are loaded, or they were dropped before the sample was done."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no weights {key!r} are loaded")


class OutOfMemory(SamplingError):
    """The request does not fit, even with fewer conversations beside it."""


class NonFiniteLogits(SamplingError):
    """The weights give NaN or infinite log-probabilities."""


class GrammarFailed(SamplingError):
    """The reply cannot be held to its grammar any further within the limits."""


class SampleCancelled(SamplingError):
    """The request was cancelled."""


class SamplerUnavailable(SamplingError):
    """The process that samples does not run, failed on this request or answers nonsense; later it may do better."""


class NotSampledThere(SamplingError):
    """The process that samples cannot have these weights; the message says what to do."""


OnToken = Callable[[int, float], None]
Done = Callable[[Sample | Exception], None]
