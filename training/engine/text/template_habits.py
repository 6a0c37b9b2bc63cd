"""What a chat template takes and shows, found by rendering small conversations, and conversations in the form that it
takes."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.tool_formats.formats import call_id

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_PROBE = "probe_of_the_template"
_USER: Json = {"role": "user", "content": "a"}
_TOOL: Json = {
    "type": "function",
    "function": {"name": _PROBE, "description": "b", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class Habits:
    """What a chat template takes and shows."""

    tools: bool = True
    """Whether it shows tools, and takes a call with its result."""
    system_role: bool = True
    """Whether it shows a system message."""
    short_ids: bool = False
    """Whether it refuses ids of calls that are not nine letters and digits."""
    single_call: bool = False
    """Whether it refuses a message with two calls."""


def habits(shows: Callable[[Sequence[Json], Sequence[Json] | None, str], bool]) -> Habits:
    """Find the habits of a template. `shows` returns whether it renders messages and tools with that text in it."""
    any_id = shows(_called("call-1"), [_TOOL], "")
    called = any_id or shows(_called("a1B2c3D4e"), [_TOOL], "")
    return Habits(
        tools=called and shows([_USER], [_TOOL], _PROBE),
        system_role=shows([{"role": "system", "content": _PROBE}, _USER], None, _PROBE),
        short_ids=called and not any_id,
        single_call=called and not shows(_called("a1B2c3D4e", "a1B2c3D4f"), [_TOOL], ""),
    )


def _called(*ids: str) -> list[Json]:
    """Return a conversation whose reply makes calls with these ids."""
    function = {"name": _PROBE, "arguments": {}}
    calls = [{"id": id, "type": "function", "function": function} for id in ids]
    results = [{"role": "tool", "tool_call_id": id, "name": _PROBE, "content": "b"} for id in ids]
    return [_USER, {"role": "assistant", "content": "", "tool_calls": calls}, *results]


def with_short_ids(messages: Sequence[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    """Return the conversation with ids of calls that are nine letters and digits. Others, as other servers make them,
    become digests; a result without an id gets that of the next call without a result."""
    renamed: list[Mapping[str, Json]] = []
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if old_calls := message.get("tool_calls"):
            calls = [{**call, "id": _short(call.get("id") or f"{number} {n}")} for n, call in enumerate(old_calls)]
            waiting = [call["id"] for call in calls]
            message = {**message, "tool_calls": calls}
        elif message.get("role") == "tool":
            old_id = message.get("tool_call_id")
            id = _short(old_id) if old_id or not waiting else waiting[0]
            waiting = [unanswered for unanswered in waiting if unanswered != id]
            message = {**message, "tool_call_id": id}
        renamed.append(message)
    return renamed


def _short(id: object) -> str:
    return id if isinstance(id, str) and _SHORT_ID.fullmatch(id) else call_id(str(id))


def without_system_role(messages: Sequence[Mapping[str, Json]]) -> list[Mapping[str, Json]]:
    """Return the conversation with every system text at the beginning of the next user message."""
    folded: list[Mapping[str, Json]] = []
    waiting: list[str] = []
    for message in messages:
        if message.get("role") == "system":
            waiting.append(str(message["content"]))
        elif message.get("role") == "user" and waiting:
            folded.append({**message, "content": "\n\n".join([*waiting, str(message["content"])])})
            waiting = []
        else:
            folded.append(message)
    return [*folded, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else folded
