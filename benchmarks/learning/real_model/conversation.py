"""A rollout for a trainer that is not ours: a conversation with an environment, as messages and as token ids."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from environment.base import Environment, Episode, Json, ToolError
from judges.base import Candidate
from judges.reference import ReferenceJudge
from training.engine.tokens import ChatTokenizer
from training.protocol.tool_formats.formats import Reply
from training.rollout.episode_tools import call_tool, out_of_turns

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
        reply = self.tokenizer.parse(self.tokenizer.decode(ids), call_seed=str(self.turns))
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
        self.messages.append({"role": "assistant", "content": reply.content, "tool_calls": calls})
        self.over = await self._execute(reply)
        if not self.over and self.turns == self.episode.max_turns:
            self.episode.end("out_of_turns", out_of_turns(self.episode))
            self.over = True
        if not self.over:
            self._read(self._next_prompt())

    async def _execute(self, reply: Reply) -> bool:
        """Execute the calls of a reply, and return whether the episode is over."""
        if not reply.tool_calls:
            self.episode.end("malformed", reply.malformed or "There is no tool call in the reply.")
            return True
        for call in reply.tool_calls:
            try:
                result = await call_tool(self.episode, call.name, call.arguments, call.id)
            except ToolError as error:
                self.episode.end("malformed", str(error))
                return True
            if result.final:
                return True
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result.content})
        return False

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


async def play(conversations: Sequence[Conversation], generate: Generate) -> None:
    """Play all conversations to their end, turn by turn."""
    while running := [each for each in conversations if not each.over]:
        replies = generate([each.so_far for each in running])
        await asyncio.gather(*(each.add(*reply) for each, reply in zip(running, replies, strict=True)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a conversation achieved."""

    reward: float
    success: bool
    malformed: bool


async def judged(environment: Environment, conversation: Conversation) -> Verdict:
    """Reward a conversation as the service does with its default judge for questions about mail."""
    episode = conversation.episode
    outcome = episode.outcome()
    judgement = await ReferenceJudge().judge(episode.scenario, [Candidate("", outcome, conversation.messages)])
    score = judgement.scores[0].value
    if score is None:
        raise RuntimeError(judgement.scores[0].explanation)
    reward = sum(environment.reward(outcome, score).values())
    return Verdict(reward, environment.success(outcome, score), outcome["finish"] == "malformed")
