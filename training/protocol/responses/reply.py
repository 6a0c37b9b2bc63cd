"""A response as it is returned, complete or so far."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.malformed_calls import MALFORMED
from learnloop_service.training.protocol.responses.items import call_item, item_id, message_item
from learnloop_service.training.protocol.responses.request import ResponsesRequest
from learnloop_service.training.protocol.responses.tools import OfferedTools


def new_id() -> str:
    """Return an unguessable id of a response."""
    return f"resp_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class ResponseFields:
    """The fields of a response that do not change while it is made."""

    request: ResponsesRequest
    model: str
    """Name of the exact checkpoint."""
    id: str = field(default_factory=new_id)
    created_at: int = field(default_factory=lambda: int(time.time()))

    def body(
        self,
        status: str,
        output: Sequence[Json] = (),
        *,
        usage: Mapping[str, Json] | None = None,
        error: Json = None,
        malformed: str | None = None,
    ) -> dict[str, Json]:
        """Return the response. `usage` and `malformed` are a chat completion's; the status incomplete means that
        max_output_tokens was reached."""
        request = self.request
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self.model,
            "output": list(output),
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "store": request.store is not False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": (request.text.format if request.text else None) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": [{"parameters": None, "strict": None, **tool} for tool in request.tools or ()],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            **({MALFORMED: malformed} if malformed else {}),
        }


def output_of(
    response_id: str, message: Mapping[str, Json], logprobs: Sequence[Json], status: str, offered: OfferedTools
) -> list[dict[str, Json]]:
    """Return the items of an assistant's message: its text, unless it has only calls, and its calls."""
    items, calls, text = list[dict[str, Json]](), message.get("tool_calls") or (), message.get("content") or ""
    if text or not calls:
        items.append(message_item(item_id("msg", response_id, 0), text, logprobs, status))
    first = len(items)
    call_items = (
        call_item(item_id("fc", response_id, number), call, offered) for number, call in enumerate(calls, first)
    )
    return [*items, *call_items]


def status_of(finish_reason: str) -> str:
    """Return the status, completed or incomplete."""
    return "incomplete" if finish_reason == "length" else "completed"


def _usage(chat: Mapping[str, Json]) -> dict[str, Json]:
    cached = (chat.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": chat["total_tokens"],
    }
