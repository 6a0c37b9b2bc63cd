"""Finds out in which tool formats a base model writes calls, by asking it.

It answers a few questions with one to three tools in each format, sampled greedily. A reply counts as a call if it can
be read and names one of the tools.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from learnloop_service.environment.json_type import Json
from learnloop_service.training.bases.report import FormatCount
from learnloop_service.training.engine.sampling.requests import Sample, SampleCancelled, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.text.tokens import BadConversation, ChatTokenizer, Message
from learnloop_service.training.engine.weights.weights import Weights

MAX_TOKENS = 96
"""Longest reply, which is enough for a call with a sentence before it."""
BATCH = 8
"""Number of questions that are asked together."""
_KEY = "base"
Replies = dict[tuple[int, ...], list[int]]
"""Sampled ids by prompt. Formats that show tools in the same way share them."""
_SYSTEM: Message = {"role": "system", "content": "Use the tools to do what the user asks."}


@dataclass(frozen=True, slots=True)
class ProbeQuestion:
    """A question, and the tools with which it can be answered."""

    text: str
    tools: tuple[Json, ...]

    @property
    def messages(self) -> list[Message]:
        return [_SYSTEM, {"role": "user", "content": self.text}]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)


def questions(count: int) -> list[ProbeQuestion]:
    """Return that many questions, at most 32, of all kinds."""
    document = json.loads(
        files("learnloop_service.training.engine.examination").joinpath("probe_questions.json").read_text("utf-8")
    )
    tools = {tool["function"]["name"]: tool for tool in document["tools"]}
    all_questions = [
        ProbeQuestion(entry["question"], tuple(tools[name] for name in entry["tools"]))
        for entry in document["questions"]
    ]
    return (
        all_questions
        if count >= len(all_questions)
        else [all_questions[number * len(all_questions) // count] for number in range(count)]
    )


def sampler_of(weights: Weights) -> Sampler:
    """Return a sampler for `probe`."""
    sampler = Sampler(slots=BATCH)
    sampler.set_weights(_KEY, weights)
    return sampler


def probe(
    sampler: Sampler,
    tokenizer: ChatTokenizer,
    questions: Sequence[ProbeQuestion],
    replies: Replies,
    on_replies: Callable[[int], None],
) -> FormatCount:
    """Ask the questions in the tokenizer's tool format, and count what the replies are.

    `replies` has those to earlier formats, and gets the new ones. `on_replies` is called with the number of replies
    that ended since the last time.
    """
    outcomes: list[str] = []
    for question in questions:
        _Reply(sampler, tokenizer, question, replies, outcomes.append).begin()
    if outcomes:  # of replies that an earlier format has got
        on_replies(len(outcomes))
    ended = len(outcomes)
    while sampler.busy:
        sampler.step()
        if len(outcomes) > ended:
            on_replies(len(outcomes) - ended)
            ended = len(outcomes)
    counted = Counter(outcomes)
    calls, no_call = counted.pop(_CALL, 0), counted.pop(_NO_CALL, 0)
    return FormatCount(tokenizer.tool_format.name, calls, counted.total(), no_call, dict(counted.most_common()))


_CALL, _NO_CALL = "call", "no call"


class _Reply:
    """One reply while it is sampled. It ends early with the first complete call."""

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: ChatTokenizer,
        question: ProbeQuestion,
        replies: Replies,
        ended: Callable[[str], None],
    ) -> None:
        self._sampler, self._tokenizer, self._question = sampler, tokenizer, question
        self._replies, self._ended = replies, ended
        self._prompt: tuple[int, ...] = ()
        self._ids: list[int] = []
        self._number = -1

    def begin(self) -> None:
        """Queue the reply. Its outcome is passed to `ended`, now if the chat template refuses the question."""
        try:
            self._prompt = tuple(self._tokenizer.prompt(self._question.messages, self._question.tools))
        except BadConversation:
            self._ended("The chat template refuses the conversation.")
            return
        if self._prompt in self._replies:
            self._ids = self._replies[self._prompt]
            self._ended(self._outcome())
            return
        request = SampleRequest(
            prompt=self._prompt,
            weights_key=_KEY,
            max_tokens=MAX_TOKENS,
            temperature=0.0,
            stop_ids=self._tokenizer.stop_ids,
            seed=0,
        )
        self._number = self._sampler.submit(request, self._on_token, self._on_done)

    def _on_token(self, id: int, logprob: float) -> None:
        self._ids.append(id)
        if self._outcome() == _CALL:
            self._sampler.cancel(self._number)

    def _on_done(self, outcome: Sample | Exception) -> None:
        if isinstance(outcome, Exception) and not isinstance(outcome, SampleCancelled):
            self._ended(f"{type(outcome).__name__}: {outcome}")
        else:
            self._replies[self._prompt] = self._ids
            self._ended(self._outcome())

    def _outcome(self) -> str:
        """Return what the reply is so far: a call, no call, or why its call cannot be read."""
        reply = self._tokenizer.parse(self._tokenizer.decode(self._ids))
        unknown = [call.name for call in reply.tool_calls if call.name not in self._question.names]
        if unknown:
            return "It calls a tool that does not exist."
        return _CALL if reply.tool_calls else reply.malformed or _NO_CALL
