"""Messages of MCP servers, some of which are not quite what the protocol asks for. What can be read of them is read:
the SDK drops such a message, and whoever waits for it waits until the time-out."""

import json
import re
from typing import TYPE_CHECKING

from pydantic import RootModel, ValidationError

from learnloop_service.environment.json_type import Json

if TYPE_CHECKING:
    from mcp.types import JSONRPCMessage

_SURROGATE = re.compile("[\ud800-\udfff]")
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\b')


class RawResult(RootModel[dict[str, Json]]):
    """A result of any form."""


def storable(value: Json) -> Json:
    """Return a JSON value with U+FFFD for half of an emoji, which JSON can spell and no encoding can express."""
    return json.loads(_SURROGATE.sub("\ufffd", json.dumps(value, ensure_ascii=False)))


def message_of(text: bytes | str) -> "JSONRPCMessage":
    """Parse a message. Raises ValidationError for any other text."""
    from mcp.types import JSONRPCMessage

    try:
        return JSONRPCMessage.model_validate_json(text)
    except ValidationError as error:
        try:
            plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
            value = storable(json.loads(plain))
        except (ValueError, RecursionError):
            raise error from None
        return JSONRPCMessage.model_validate(_mended(value))


def message_in(error: ValidationError) -> "JSONRPCMessage":
    """Parse the message that the SDK could not parse. Raises ValidationError."""
    received = error.errors(include_url=False, include_context=False)[0]["input"]
    return message_of(received if isinstance(received, bytes | str) else json.dumps(received))


def failed_reply(text: bytes) -> "JSONRPCMessage | None":
    """Return an error for the call that the text seems to answer; None if it does not look like an answer."""
    from mcp.types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCMessage

    id = _ID.search(text)
    if id is None or b'"jsonrpc"' not in text or not (b'"result"' in text or b'"error"' in text):
        return None
    error = ErrorData(code=INTERNAL_ERROR, message="the MCP server sent a malformed result")
    return JSONRPCMessage(JSONRPCError(jsonrpc="2.0", id=int(id[1]), error=error))


def _mended(message: Json) -> Json:
    """Return a reply in the form of JSON-RPC; other values unchanged."""
    from mcp.types import INTERNAL_ERROR

    if not isinstance(message, dict) or not ("result" in message or "error" in message):
        return message
    reply = {"jsonrpc": "2.0", **message}
    error, result = reply.pop("error", None), reply.pop("result", None)
    if error is None:
        return {**reply, "result": result if isinstance(result, dict) else {"content": result}}
    failure = error if isinstance(error, dict) else {"message": error}
    code, reason = failure.get("code"), failure.get("message", failure)
    text = reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False)
    return {**reply, "error": {"code": code if isinstance(code, int) else INTERNAL_ERROR, "message": text}}
