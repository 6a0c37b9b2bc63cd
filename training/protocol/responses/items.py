"""Converts between the items of a Responses conversation and the messages of a chat.

A conversation gives the same messages in both formats, and therefore the same prompt. Its sampled turns are recognized
in either format.
"""

from collections.abc import Mapping, Sequence

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.chat_reader import text_of
from learnloop_service.training.protocol.responses.tools import OfferedTools, offered_name

Item = Mapping[str, Json]


def reference_in(item: Item) -> str | None:
    """Return the id of the item that stands in place of an earlier one; None if the item is whole. OpenAI's type of
    references is optional."""
    kind, id = item.get("type"), item.get("id")
    is_reference = kind == "item_reference" or (kind is None and isinstance(id, str) and "role" not in item)
    return str(id) if is_reference else None


def item_id(kind: str, response_id: str, number: int) -> str:
    """Return the id of an item of a response: `msg` or `fc`, what is unguessable in the response's id, and the item's
    number. The same response always has the same items."""
    return f"{kind}_{response_id.removeprefix('resp_')}{number:02x}"


def messages_of(items: Sequence[Item], instructions: str | None) -> list[dict[str, Json]]:
    """Return the messages for the items, after the `instructions`. Raises ValueError that names the item.

    Calls are added to the assistant message before them, or to a new one. Reasoning is left out, because the models
    here produce none.
    """
    messages: list[dict[str, Json]] = [{"role": "system", "content": instructions}] if instructions else []
    turn: dict[str, Json] | None = None
    for number, item in enumerate(items):
        where = f"item {number}"
        match item.get("type") or "message":
            case "message":
                message = {"role": item.get("role"), "content": _text(item.get("content"), where)}
                turn = message if message["role"] == "assistant" else None
                messages.append(message)
            case "function_call":
                if turn is None:
                    turn = {"role": "assistant", "content": ""}
                    messages.append(turn)
                turn.setdefault("tool_calls", []).append(_call(item, where))
            case "function_call_output":
                turn = None
                call_id, output = _string(item, "call_id", where), _text(item.get("output"), where)
                messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
            case "reasoning":
                pass
            case kind:
                raise ValueError(f"{where} has type {kind!r}, which is not supported")
    return messages


def message_item(item_id: str, text: str, logprobs: Sequence[Json], status: str) -> dict[str, Json]:
    """Return the item for an assistant's text. `logprobs` are a chat completion's, for all tokens of the reply."""
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": status,
        "content": [text_part(text, logprobs)],
    }


def text_part(text: str, logprobs: Sequence[Json] = ()) -> dict[str, Json]:
    """Return the content of a message item."""
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": [_with_bytes(token) for token in logprobs],
    }


def call_item(item_id: str, call: Mapping[str, Json], offered: OfferedTools) -> dict[str, Json]:
    """Return the item for a tool call of a chat completion, with the namespace of the function if it is in one."""
    function = call["function"]
    namespace, name = offered.names.get(function["name"], (None, function["name"]))
    return {
        "type": "function_call",
        "id": item_id,
        "call_id": call["id"],
        "name": name,
        "arguments": function["arguments"],
        "status": "completed",
        **({} if namespace is None else {"namespace": namespace}),
    }


def _with_bytes(token: Mapping[str, Json]) -> dict[str, Json]:
    """Replace null in `bytes`, which the Responses API does not allow."""
    top = [{**other, "bytes": other["bytes"] or []} for other in token["top_logprobs"]]
    return {**token, "bytes": token["bytes"] or [], "top_logprobs": top}


def _text(content: Json, where: str) -> str:
    if (text := text_of(content)) is None:
        raise ValueError(f"{where}: content must be text")
    return text


def _call(item: Item, where: str) -> dict[str, Json]:
    name = offered_name(_string(item, "name", where), item.get("namespace"))
    function = {"name": name, "arguments": _string(item, "arguments", where)}
    return {"id": _string(item, "call_id", where), "type": "function", "function": function}


def _string(item: Item, key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{where}: {key} must be text")
    return value
