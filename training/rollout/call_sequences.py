"""From the recorded calls of a rollout to training sequences, by exact token prefix.

An agent that owns its loop may rewrite its history, ask a side question, run a sub-agent or call its model in parallel.
Which of its calls belong together is decided by what the model was shown, not by what the agent meant: a call whose
prompt begins with all tokens of a sequence so far (prompts and replies) continues it, any other begins one of its own.
So every sampled token is trained exactly once, after exactly the tokens that it was sampled after, and no token is
trained that was not sampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Call(Protocol[T_co]):
    """A prompt and the reply that was sampled to it: token ids or, where these are not known, whole messages."""

    @property
    def prompt(self) -> Sequence[T_co]: ...

    @property
    def reply(self) -> Sequence[T_co]: ...


class NotOneSequence(ValueError):
    """Calls do not extend each other, so that they are not one training sequence."""


@dataclass(frozen=True, slots=True)
class SampledCall:
    """One call as the engine saw it: token ids, and the log-probability of each token of the reply."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Token ids; `trained` are the positions of those that were sampled, `logprobs` what the sampler gave them."""

    ids: tuple[int, ...]
    trained: tuple[int, ...]
    logprobs: tuple[float, ...]


def sequences_of(calls: Sequence[Call[object]]) -> list[list[int]]:
    """The numbers of the calls that make each sequence, in order; every call with a reply is in exactly one.

    A call that extends several sequences continues the longest one.
    """
    made: list[list[int]] = []
    contents: list[list[object]] = []
    for number, call in enumerate(calls):
        if not call.reply:
            continue  # nothing was sampled
        prompt = list(call.prompt)
        extended = [place for place, content in enumerate(contents) if prompt[: len(content)] == content]
        place = max(extended, key=lambda each: len(contents[each]), default=len(made))
        if place == len(made):
            made.append([])
            contents.append([])
        made[place].append(number)
        contents[place] = [*prompt, *call.reply]
    return made


def joined(calls: Sequence[SampledCall]) -> TokenSequence:
    """The training sequence of calls of which each extends the one before. Raises NotOneSequence."""
    ids: tuple[int, ...] = ()
    trained: list[int] = []
    for number, call in enumerate(calls):
        if call.prompt[: len(ids)] != ids:
            raise NotOneSequence(f"the prompt of call {number} does not extend the call before it")
        ids = (*call.prompt, *call.reply)
        trained += range(len(call.prompt), len(ids))
    return TokenSequence(ids, tuple(trained), tuple(value for call in calls for value in call.logprobs))
