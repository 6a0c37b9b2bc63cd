"""HTTP to the server of a language model, which is not trusted.

It follows no redirect, which would hand trajectories and the key to another server; what it reads is bounded; proxies
and other settings of the process's environment are not used.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from learnloop_service.environment.base import Json
from learnloop_service.environment.bounded_http import AnswerLimits, BoundedTransport

MAX_ANSWER_BYTES = 1_000_000


class UnusableReply(Exception):
    """The reply cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Status, headers and the body as text."""

    status: int
    headers: Mapping[str, str]
    text: str

    def object(self) -> dict[str, Json]:
        """Return the body as a JSON object. Raises UnusableReply."""
        try:
            document: Any = json.loads(self.text)
        except (ValueError, RecursionError):
            raise UnusableReply("an answer that is not JSON") from None
        if not isinstance(document, dict):
            raise UnusableReply("an answer that is not a JSON object")
        return document


async def post(
    transport: httpx.AsyncBaseTransport, url: str, headers: Mapping[str, str], body: Mapping[str, Json]
) -> HttpReply:
    """The reply to the body, sent as JSON. Deadlines are the caller's. Closes the transport.

    Raises what httpx and the transport raise, and AnswerRefused.
    """
    bounded = BoundedTransport(transport, AnswerLimits(MAX_ANSWER_BYTES))
    async with httpx.AsyncClient(transport=bounded, timeout=None, trust_env=False, follow_redirects=False) as client:
        response = await client.post(url, headers=headers, json=dict(body))
    return HttpReply(response.status_code, response.headers, response.content.decode("utf-8", "replace"))
