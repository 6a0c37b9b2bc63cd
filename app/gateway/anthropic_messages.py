"""Anthropic's Messages API on top of chat completions. The same conversation gives the same prompt in both."""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import orjson

from learnloop_service.app.agent_sessions.canonical import BadRequestBody
from learnloop_service.app.gateway.chunks import Chunk
from learnloop_service.app.gateway.stream_errors import STREAM_ERRORS, status_of
from learnloop_service.app.http.anthropic_errors import error_document
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.responses.parameters import hint_warnings, hosted_tool_warnings
from learnloop_service.training.protocol.stop_reason import stop_string

Block = Mapping[str, Json]

NAME = "messages"
_SAME = ("model", "temperature", "top_p", "top_k", "max_tokens")
_HINTS = {"cache_control", "context_management", "thinking"}
_KNOWN = {*_SAME, "messages", "system", "tools", "tool_choice", "stop_sequences", "stream", "output_config"}
_NO_EFFECT = {"metadata", "service_tier", "inference_geo"}
_OUTPUT_HINTS = ("effort", "task_budget")
"""Hints in output_config."""
_HOSTED = ("advisor", "code_execution", "mcp_toolset", "tool_search_tool", "web_fetch", "web_search")
"""Beginnings of the types of the tools that Anthropic runs itself. They do not exist here, so the model is not offered
them."""
_OF_THE_PROMPT = ("model", "messages", "tools", "tool_choice")
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True, slots=True)
class MessagesAsked:
    """A request to the Messages API."""

    chat_body: dict[str, Json]
    is_streamed: bool
    warnings: Sequence[str]

    def document(self, completion: Mapping[str, Json]) -> dict[str, Json]:
        """Return the whole message."""
        [choice] = completion["choices"]
        content = _blocks(choice["message"])
        stop = stop_string(choice, self.stops)
        return _message(completion, content, _stop_reason(choice, stop), _usage(completion), stop)

    @property
    def stops(self) -> Sequence[str]:
        """The stop sequences."""
        return self.chat_body.get("stop") or ()

    async def events(self, chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[str]:
        """Yield the message as server-sent events."""
        message_events = _Events(self.stops)
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    for event in message_events.of(chunk):
                        yield _server_sent(event)
            for event in message_events.closing():
                yield _server_sent(event)
        except STREAM_ERRORS as error:
            yield _server_sent(error_document(status_of(error), str(error)))


def counted(body: Mapping[str, Json]) -> dict[str, Json]:
    """Return the parts of a chat completion request that determine its prompt. Raises BadRequestBody."""
    chat = _translated({**body, "max_tokens": 1, "stream": False}).chat_body
    return {name: value for name, value in chat.items() if name in _OF_THE_PROMPT}


def read_request(body: Mapping[str, Json]) -> MessagesAsked:
    """Translate the request to a chat completion. Raises BadRequestBody, also for unsupported parameters that would
    change the reply, and for a beginning of the reply."""
    request = _translated(body)
    messages = request.chat_body["messages"]
    if messages and messages[-1]["role"] == "assistant":
        if messages[-1]["content"] or "tool_calls" in messages[-1]:
            last = len(body["messages"]) - 1
            raise _bad("messages", f"messages.{last}: a reply cannot continue a message; end with one of the user")
        messages.pop()
    return request


def _translated(body: Mapping[str, Json]) -> MessagesAsked:
    for name, value in body.items():
        if name not in _KNOWN | _NO_EFFECT | _HINTS and value not in (None, [], {}):
            raise _bad(name, f"{name} is not supported")
    limit = body.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise _bad("max_tokens", "max_tokens must be a positive whole number")
    chat: dict[str, Json] = {name: body[name] for name in _SAME if body.get(name) is not None}
    chat["messages"] = [*_system(body.get("system")), *_messages(body.get("messages"))]
    tools = _list(body.get("tools") or [], "tools")
    hosted = [str(tool["type"]) for tool in tools if _is_hosted(tool)]
    if tools:
        chat["tools"] = [_tool(tool, number) for number, tool in enumerate(tools) if not _is_hosted(tool)]
        chat |= _tool_choice(body.get("tool_choice"))
    if stops := body.get("stop_sequences"):
        chat["stop"] = stops
    effort, response_format = _output_config(body.get("output_config") or {})
    warnings = [*hint_warnings(body, _HINTS), *effort, *hosted_tool_warnings(hosted)]
    return MessagesAsked(chat | response_format, bool(body.get("stream")), warnings)


def _output_config(config: Json) -> tuple[list[str], dict[str, Json]]:
    """Return the warnings about hints in output_config, and its format as a chat completion has it."""
    if not isinstance(config, dict):
        raise _bad("output_config", "output_config must be an object")
    response_format: dict[str, Json] = {}
    for name, value in config.items():
        if name == "format" and value is not None:
            response_format = {"response_format": _response_format(value)}
        elif name not in _OUTPUT_HINTS and value is not None:
            raise _bad("output_config", f"output_config.{name} is not supported")
    hints = {f"output_config.{name}": config.get(name) for name in _OUTPUT_HINTS}
    return hint_warnings(hints, hints), response_format


def _response_format(form: Json) -> dict[str, Json]:
    if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise _bad("output_config", "output_config.format must have the type json_schema, and a schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"], "strict": True}}


def _is_hosted(tool: Block) -> bool:
    kind = tool.get("type")
    return isinstance(kind, str) and kind.startswith(_HOSTED)


def _system(system: Json) -> list[dict[str, Json]]:
    return [{"role": "system", "content": _text(system, "system")}] if system else []


def _messages(messages: Json) -> Iterator[dict[str, Json]]:
    for number, message in enumerate(_list(messages, "messages")):
        where = f"messages.{number}"
        role, content = message.get("role"), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else _list(content, where)
        if role == "assistant":
            yield _assistant_message(blocks, where)
        elif role == "user":
            yield from _user_messages(blocks, where)
        elif role == "system":
            yield {"role": "system", "content": _text(blocks, where)}
        else:
            raise _bad("messages", f"{where}: the role must be user, assistant or system")


def _assistant_message(blocks: Sequence[Block], where: str) -> dict[str, Json]:
    """Return the assistant's message. Thinking is left out, because the models here write none."""
    text, calls = "", []
    for block in blocks:
        match block.get("type"):
            case "text":
                text += _string(block, "text", where)
            case "tool_use":
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                function = {"name": _string(block, "name", where), "arguments": arguments}
                calls.append({"id": _string(block, "id", where), "type": "function", "function": function})
            case "thinking" | "redacted_thinking":
                pass
            case kind:
                raise _bad("messages", f"{where}: {kind} is not supported")
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _user_messages(blocks: Sequence[Block], where: str) -> Iterator[dict[str, Json]]:
    """Yield the messages of a user turn. Tool results become separate messages."""
    text: list[str] = []
    for block in blocks:
        match block.get("type"):
            case "text":
                text.append(_string(block, "text", where))
            case "tool_result":
                if text:
                    yield {"role": "user", "content": "\n".join(text)}
                    text = []
                content = _text(block.get("content") or "", where)
                yield {"role": "tool", "tool_call_id": _string(block, "tool_use_id", where), "content": content}
            case kind:
                raise _bad("messages", f"{where}: {kind} is not supported, only text and results of tools")
    if text:
        yield {"role": "user", "content": "\n".join(text)}


def _tool(tool: Block, number: int) -> dict[str, Json]:
    where = f"tools.{number}"
    if tool.get("type") not in (None, "custom"):
        raise _bad("tools", f"{where}: {tool.get('type')} is not supported; describe the tool with an input_schema")
    function = {
        "name": _string(tool, "name", where),
        "description": tool.get("description") or "",
        "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _tool_choice(choice: Json) -> dict[str, Json]:
    if not choice:
        return {}
    if isinstance(choice, str):
        choice = {"type": choice}
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        named: Json = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in _CHOICES:
        named = _CHOICES[kind]
    else:
        raise _bad("tool_choice", "the type of tool_choice must be auto, any, tool or none")
    return {"tool_choice": named, **({"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {})}


def _text(content: Json, where: str) -> str:
    if isinstance(content, str):
        return content
    parts = _list(content, where)
    if not all(part.get("type") == "text" for part in parts):
        raise _bad("messages", f"{where}: the content must be text")
    return "\n".join(_string(part, "text", where) for part in parts)


def _list(value: Json, where: str) -> list[dict[str, Json]]:
    if not isinstance(value, list) or not all(isinstance(element, dict) for element in value):
        raise _bad("messages", f"{where} must be a list of objects")
    return value


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise _bad("messages", f"{where}: {name} must be text")
    return value


def _bad(parameter: str, message: str) -> BadRequestBody:
    return BadRequestBody(("body", parameter), f"{message}.")


def _blocks(message: Mapping[str, Json]) -> list[dict[str, Json]]:
    text = [{"type": "text", "text": message["content"]}] if message.get("content") else []
    return [*text, *(_tool_use(call) for call in message.get("tool_calls") or ())]


def _tool_use(call: Mapping[str, Json]) -> dict[str, Json]:
    """Convert a tool call. Those of other servers can lack anything, which the client sees as it does in a stream."""
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = None
    return {
        "type": "tool_use",
        "id": call.get("id"),
        "name": function.get("name"),
        "input": arguments if isinstance(arguments, dict) else {},
    }


def _message(
    reply: Mapping[str, Json],
    content: Sequence[Json],
    stop_reason: str | None,
    usage: Mapping[str, Json],
    stop_sequence: str | None = None,
) -> dict[str, Json]:
    return {
        "id": f"msg_{str(reply.get('id')).removeprefix('chatcmpl-')}",
        "type": "message",
        "role": "assistant",
        "model": reply.get("model"),
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": usage,
    }


def _stop_reason(choice: Mapping[str, Json], stop: str | None) -> str | None:
    return _STOP_REASONS.get(choice.get("finish_reason") or "") if stop is None else "stop_sequence"


def _usage(reply: Mapping[str, Json]) -> dict[str, Json]:
    """Convert the token usage. Anthropic counts cached prompt tokens separately from the rest of the prompt."""
    usage = reply.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    prompt = usage.get("prompt_tokens", len(reply.get("prompt_token_ids") or ()))
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens", 0),
    }


@dataclass(slots=True)
class _Events:
    """Makes the events of one message. Its content blocks follow each other."""

    stops: Sequence[str]
    begun: bool = False
    index: int = -1
    block: str | int | None = None
    """The open block: `text` or the index of a tool call."""
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: dict[str, Json] = field(default_factory=lambda: _usage({}))

    def of(self, chunk: Chunk) -> Iterator[dict[str, Json]]:
        if not self.begun:
            self.begun = True
            yield {"type": "message_start", "message": _message(chunk, (), None, _usage(chunk))}
        if chunk.get("usage"):
            self.usage = _usage(chunk)
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("content"):
                yield from self._in_block("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            for call in delta.get("tool_calls") or ():
                yield from self._of_call(call)
            self.stop_sequence = stop_string(choice, self.stops) or self.stop_sequence
            self.stop_reason = _stop_reason(choice, self.stop_sequence) or self.stop_reason

    def closing(self) -> Iterator[dict[str, Json]]:
        yield from self._end_block()
        delta = {"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence}
        yield {"type": "message_delta", "delta": delta, "usage": self.usage}
        yield {"type": "message_stop"}

    def _of_call(self, call: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
        function = call.get("function") or {}
        tool: dict[str, Json] = {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": {}}
        yield from self._in_block(call.get("index", 0), tool)
        if arguments := function.get("arguments"):
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _in_block(self, block: str | int, begun: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
        if block != self.block:
            yield from self._end_block()
            self.block = block
            self.index += 1
            yield {"type": "content_block_start", "index": self.index, "content_block": begun}

    def _end_block(self) -> Iterator[dict[str, Json]]:
        if self.block is not None:
            self.block = None
            yield {"type": "content_block_stop", "index": self.index}

    def _delta(self, delta: Mapping[str, Json]) -> dict[str, Json]:
        return {"type": "content_block_delta", "index": self.index, "delta": delta}


def _server_sent(event: Mapping[str, Json]) -> str:
    return f"event: {event['type']}\ndata: {orjson.dumps(event).decode()}\n\n"
