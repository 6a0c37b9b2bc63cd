"""A rollout that begins in the middle of a recorded one.

Before the fork, the recorded replies stand in for the model's and their tool calls are executed again, so that the
environment gets into the state that it was in. Every message that the model would be shown is compared with the
recorded one: the first difference ends the replay. From the fork on, requests to the model have the recorded token ids
of its earlier replies, so that it continues exactly these tokens.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from learnloop_service.environment.base import Json
from learnloop_service.training.recorded_calls import RecordedCalls
from learnloop_service.training.rollout.chat import identity, message_of, sampled_ids
from learnloop_service.training.rollout.histories import PROMPT_TOKEN_IDS

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice

Message = dict[str, Json]
_EXCERPT = 2_000


class ReplayDiffers(Exception):
    """The environment did not do what it did in the recorded rollout."""

    def __init__(self, turn: int, tool: str | None, recorded: str | None, found: str | None) -> None:
        """`turn` is the turn, from 1, in which the tool was called; 0 for the messages that the rollout opens with.
        A text is None where there was no message."""
        self.turn = turn
        self.tool = tool
        self.recorded = recorded
        self.found = found
        where = f"turn {turn}" if turn else "its opening messages"
        what = f"the result of {tool}" if tool else "what the model is shown"
        super().__init__(f"the replay differs in {where}: {what} was {_quoted(recorded)} and is now {_quoted(found)}")


class ForkReached(Exception):
    """A replay without a model has come to the turn that a model would sample."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the conversation before the fork: the new text of one message, or a message that the user adds."""

    content: str
    message: int | None = None
    """Index of the message in the edited conversation; None for a message that is added at its end."""
    added: bool = False
    """Whether the user adds the message there."""


@dataclass(frozen=True)
class Fork:
    """The conversation before the first turn that is sampled."""

    messages: Sequence[Message]
    """The conversation as the model is shown it, edited, up to the last message before the fork."""
    replies: "Mapping[int, Choice]"
    """The model's replies in it, by index, with their token ids if these are known."""
    edits: Sequence[Edit] = ()
    """The changes that the environment does not make by itself, each with the index of its message, the newest last."""

    @classmethod
    def of(
        cls,
        conversation: "Sequence[Message | Choice]",
        turn: int,
        edit: Edit | None = None,
        earlier: Sequence[Edit] = (),
    ) -> "Fork":
        """Return the fork of a recorded conversation before its reply number `turn`, from 1.

        `earlier` are the edits with which the conversation itself was made. Raises ValueError if it has no such reply,
        or if the edit is not of a message before it.
        """
        of_replies = [index for index, item in enumerate(conversation) if not isinstance(item, dict)]
        if not 1 <= turn <= len(of_replies):
            raise ValueError(f"the rollout has no turn {turn}; it has {len(of_replies)}")
        before = list(conversation[: of_replies[turn - 1]])
        edits = [old for old in earlier if old.message is not None and old.message < len(before)]
        edited = None if edit is None or edit.added else edit.message
        if edit is not None and edited is None:
            edits.append(Edit(edit.content, len(before), added=True))
            before.append({"role": "user", "content": edit.content})
        elif edit is not None and edited is not None:
            if not 0 <= edited < len(before):
                raise ValueError(f"message {edited} is not before turn {turn}, which is message {len(before)}")
            before[edited] = _reworded(before[edited], edit.content)
            was_added = any(old.message == edited and old.added for old in edits)
            edits = [old for old in edits if old.message != edited]
            edits.append(Edit(edit.content, edited, added=was_added))
        replies = {index: item for index, item in enumerate(before) if not isinstance(item, dict)}
        messages = [item if isinstance(item, dict) else message_of(item) for item in before]
        return cls(messages, replies, edits)

    @property
    def turn(self) -> int:
        """The first turn that is sampled, from 1."""
        return len(self.replies) + 1

    @property
    def exact(self) -> bool:
        """Whether the replies' token ids are known, so that the model continues the tokens that it sampled."""
        return all(sampled_ids(reply) is not None for reply in self.replies.values())

    @cached_property
    def completions(self) -> "Sequence[ChatCompletion]":
        """The replies in order, as the endpoint gave them."""
        return [_completion(reply) for _, reply in sorted(self.replies.items())]

    def edited(self, start: int, messages: Sequence[Message]) -> list[Message]:
        """Return the environment's messages from the index `start` of the conversation on, edited."""
        changed = {edit.message: edit for edit in self.edits}
        result: list[Message] = []
        for message in messages:
            edit = changed.get(start + len(result))
            result.append(message if edit is None or edit.added else {**message, "content": edit.content})
        while (edit := changed.get(start + len(result))) is not None and edit.added:
            result.append({"role": "user", "content": edit.content})
        return result

    def compare(self, messages: Sequence[Message]) -> None:
        """Compare what the model is to be shown with the beginning of the conversation. Raises ReplayDiffers."""
        turn, tools = 0, dict[str, str]()
        for recorded, replayed in itertools.zip_longest(self.messages[: len(messages)], messages[: len(self.messages)]):
            if replayed is None or recorded is None or identity(replayed) != identity(recorded):
                either = recorded or replayed or {}
                tool = tools.get(str(either.get("tool_call_id")))
                raise ReplayDiffers(turn, tool, _content(recorded), _content(replayed))
            if recorded["role"] == "assistant":
                turn += 1
                tools |= {call["id"]: call["function"]["name"] for call in recorded.get("tool_calls") or ()}


class ReplayedCalls(RecordedCalls):
    """Answers the calls before the fork with the recorded replies, and compares what they ask with the recording."""

    counts = False

    def __init__(self, fork: Fork) -> None:
        super().__init__()
        self._fork = fork
        self._opening = sum(message["role"] == "assistant" for message in fork.messages) - len(fork.replies)

    def answer(self, body: Mapping[str, Json]) -> "ChatCompletion | None":
        """Return the recorded reply to a request before the fork, whatever its model and seed. Raises ReplayDiffers."""
        number = sum(message["role"] == "assistant" for message in body["messages"]) - self._opening
        if number <= len(self._fork.completions):
            self._fork.compare(body["messages"])
        if number >= len(self._fork.completions):
            return super().answer(body)
        self.given = True
        reply: ChatCompletion = self._fork.completions[number]
        return reply


class NoModel:
    """Stands in for the model of a replay that ends at the fork."""

    model = "none"
    remembers = False
    tells_token_ids = True

    async def complete(self, body: Mapping[str, Json]) -> "ChatCompletion":
        """Raise ForkReached."""
        raise ForkReached


def _quoted(text: str | None) -> str:
    return "no message" if text is None else repr(text)


def _content(message: Mapping[str, Json] | None) -> str | None:
    return None if message is None else str(message.get("content") or "")[:_EXCERPT]


def _reworded(item: "Message | Choice", content: str) -> "Message | Choice":
    """Return a message or a reply with another text. The tokens of a reply are then no longer known."""
    if isinstance(item, dict):
        return {**item, "content": content}
    message = item.message.model_copy(update={"content": content})
    return item.model_copy(update={"message": message, "logprobs": None})


def _completion(reply: "Choice") -> "ChatCompletion":
    from openai.types.chat import ChatCompletion
    from openai.types.completion_usage import CompletionUsage

    prompt: Any = (reply.model_extra or {}).get(PROMPT_TOKEN_IDS)
    sampled = sampled_ids(reply)
    usage = None
    if prompt is not None and sampled is not None:
        counts = len(prompt), len(sampled)
        usage = CompletionUsage(prompt_tokens=counts[0], completion_tokens=counts[1], total_tokens=sum(counts))
    whole = ChatCompletion(id="", object="chat.completion", created=0, model="", choices=[reply], usage=usage)
    return whole if prompt is None else whole.model_copy(update={PROMPT_TOKEN_IDS: prompt})
