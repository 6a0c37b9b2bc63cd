"""The shared part of careless demonstrations in all environments: recording a conversation through the real episode.

The demonstrator writes the agent's turns and the episode answers. Mistakes are part of the design: the base model
learns the form of the work with a poor strategy, never an expert's.
"""

import json
from dataclasses import dataclass, field
from random import Random

from learnloop_service.environment.base import Episode, Json, ToolError, ToolResult

MALFORMED_RATE = 0.02
"""Share of turns that end in a malformed call."""


@dataclass(slots=True)
class RecordedConversation:
    """A conversation in OpenAI's form, recorded so far."""

    episode: Episode
    rng: Random
    messages: list[dict[str, Json]] = field(default_factory=list)
    over: bool = False
    turns: int = 0

    def __post_init__(self) -> None:
        self.messages = self.episode.messages()

    async def call(self, name: str, **arguments: Json) -> str:
        """Make a tool call and return the result that the agent reads. A call is sometimes malformed, which ends the
        conversation."""
        self.turns += 1
        text = json.dumps(arguments, ensure_ascii=False)
        if self.rng.random() < MALFORMED_RATE:
            self._malformed(name, text)
            return ""
        call = {"id": f"call_{self.turns}", "type": "function", "function": {"name": name, "arguments": text}}
        self.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        try:
            result = await self.episode.call(name, arguments)
        except ToolError as error:
            result = ToolResult(str(error), final=True)
        self.over = result.final or self.turns >= self.episode.max_turns
        if not result.final:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.content})
        return result.content

    def _malformed(self, name: str, arguments: str) -> None:
        whole = f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        broken = [
            whole.replace("}}\n", "}\n"),
            whole.replace('"]', '"'),
            whole.replace('": "', '": ', 1),
            whole.replace("</tool_call>", ""),
            arguments,
        ]
        text = self.rng.choice([text for text in broken if text != whole])
        self.messages.append({"role": "assistant", "content": text})
        self.over = True


def weighted(rng: Random, **choices: float) -> str:
    """Draw one of the names by weight."""
    return rng.choices(tuple(choices), tuple(choices.values()))[0]
