"""A rollout for a trainer that is not ours: a conversation with an environment, as messages and as token ids."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from openai.types.chat.chat_completion import Choice

from learnloop_service.environment.base import Environment, Episode, Json
from learnloop_service.judges.base import Candidate
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.protocol.tool_formats.formats import Reply
from learnloop_service.training.rollout.chat import message_of
from learnloop_service.training.rollout.episode_tools import out_of_turns
from learnloop_service.training.rollout.rollout import execute_reply

Sampled = tuple[list[int], list[float]]
"""The token ids of a reply and their log-probabilities."""
Generate = Callable[[list[list[int]]], list[Sampled]]
"""Answers prompts, given as token ids."""


@dataclass(slots=True)
class Conversation:
    """A rollout, as messages and as the token ids that TRL trains on."""

    tokenizer: ChatTokenizer
    episode: Episode
    messages: list[dict[str, Json]] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    """1 for sampled tokens and 0 for tools' results."""
    turns: int = 0
    over: bool = False
    _exact: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.messages = self.episode.messages()
        self.prompt = self._next_prompt()

    @property
    def so_far(self) -> list[int]:
        """The prompt of the next reply."""
        return self.prompt + self.completion

    async def add(self, ids: list[int], logprobs: list[float]) -> None:
        """Add a reply, and execute its calls."""
        self._exact[len(self.messages)] = ids
        self.completion += ids
        self.logprobs += logprobs
        self.mask += [1] * len(ids)
        self.turns += 1
        choice = self._choice(self.tokenizer.parse(self.tokenizer.decode(ids), call_seed=str(self.turns)))
        results, self.over = await execute_reply(self.episode, choice)
        self.messages += [message_of(choice), *results]
        if not self.over and self.turns == self.episode.max_turns:
            self.episode.end("out_of_turns", out_of_turns(self.episode))
            self.over = True
        if not self.over:
            self._read(self._next_prompt())

    def _choice(self, reply: Reply) -> Choice:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
        message = {"role": "assistant", "content": reply.content, "tool_calls": calls or None}
        return Choice.model_validate(
            {"index": 0, "finish_reason": "stop", "message": message, MALFORMED: reply.malformed}
        )

    def _read(self, prompt: list[int]) -> None:
        """Add what stands between the last reply and the next one."""
        if prompt[: len(self.so_far)] != self.so_far:
            raise RuntimeError("a prompt does not continue the conversation before it")
        new = prompt[len(self.so_far) :]
        self.completion += new
        self.logprobs += [0.0] * len(new)
        self.mask += [0] * len(new)

    def _next_prompt(self) -> list[int]:
        tools = [tool.openai() for tool in self.episode.tools]
        return self.tokenizer.prompt(self.messages, tools, exact=self._exact)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a conversation achieved."""

    reward: float
    success: bool
    malformed: bool


async def play(environment: Environment, conversations: Sequence[Conversation], generate: Generate) -> list[Verdict]:
    """Play all conversations to their end, turn by turn, and judge them."""
    while running := [conversation for conversation in conversations if not conversation.over]:
        replies = generate([conversation.so_far for conversation in running])
        await asyncio.gather(*(conversation.add(*reply) for conversation, reply in zip(running, replies, strict=True)))
    return [await _judged(environment, conversation) for conversation in conversations]


async def _judged(environment: Environment, conversation: Conversation) -> Verdict:
    """Reward a conversation as the service does with its default judge for questions about mail."""
    episode = conversation.episode
    outcome = episode.outcome()
    judgement = await ReferenceJudge().judge(episode.scenario, [Candidate("", outcome, conversation.messages)])
    score = judgement.scores[0].value
    if score is None:
        raise RuntimeError(judgement.scores[0].explanation)
    reward = sum(environment.reward(outcome, score).values())
    return Verdict(reward, environment.success(outcome, score), outcome["finish"] == "malformed")
