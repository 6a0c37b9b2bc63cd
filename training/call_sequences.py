"""Turns the recorded calls of a rollout into training sequences by exact token prefix.

An agent that owns its loop can rewrite its history, ask a side question, run a sub-agent or call its model in parallel.
Which of its calls belong together depends on what the model was shown, not on the agent's intent: a call whose prompt
begins with all tokens of a sequence so far (prompts and replies) continues that sequence; any other call starts a new
one. Every sampled token is therefore trained exactly once, with exactly the context that it was sampled in, and only
sampled tokens are trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Call(Protocol[T_co]):
    """A prompt and the reply sampled for it, as token ids or, where these are unknown, as whole messages."""

    @property
    def prompt(self) -> Sequence[T_co]: ...

    @property
    def reply(self) -> Sequence[T_co]: ...


class NotOneSequence(ValueError):
    """Calls do not extend each other, so they are not one training sequence."""


@dataclass(frozen=True, slots=True)
class SampledCall:
    """One call as the engine saw it: token ids, and the log-probability of each token of the reply."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids, the positions of the sampled ones (`trained`), and the sampler's log-probabilities of those."""

    ids: tuple[int, ...]
    trained: tuple[int, ...]
    logprobs: tuple[float, ...]


def sequences_of(calls: Sequence[Call[object]]) -> list[list[int]]:
    """Return the indices of the calls in each sequence, in order. Every call with a reply is in exactly one sequence.

    A call that extends several sequences continues the longest one.
    """
    sequences: list[list[int]] = []
    contents: list[list[object]] = []
    for number, call in enumerate(calls):
        if not call.reply:
            continue  # nothing was sampled
        prompt = list(call.prompt)
        extended = [index for index, content in enumerate(contents) if prompt[: len(content)] == content]
        longest = max(extended, key=lambda index: len(contents[index]), default=len(sequences))
        if longest == len(sequences):
            sequences.append([])
            contents.append([])
        sequences[longest].append(number)
        contents[longest] = [*prompt, *call.reply]
    return sequences


def joined(calls: Sequence[SampledCall]) -> TokenSequence:
    """Return the training sequence of calls that each extend the one before. Raises NotOneSequence."""
    ids: tuple[int, ...] = ()
    trained: list[int] = []
    for number, call in enumerate(calls):
        if call.prompt[: len(ids)] != ids:
            raise NotOneSequence(f"the prompt of call {number} does not extend the call before it")
        ids = (*call.prompt, *call.reply)
        trained += range(len(call.prompt), len(ids))
    return TokenSequence(ids, tuple(trained), tuple(value for call in calls for value in call.logprobs))
