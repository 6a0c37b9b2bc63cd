"""HTTP to the server of a language model, which is not trusted.

It follows no redirect, because that would hand trajectories and the key to another server. It limits how much it reads,
and ignores proxies and other settings in the process's environment variables.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from environment.base import Json
from environment.bounded_http import AnswerLimits, BoundedTransport

MAX_ANSWER_BYTES = 1_000_000


class UnusableReply(Exception):
    """The reply cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP reply: its status, headers and body as text."""

    status: int
    headers: Mapping[str, str]
    text: str

    def object(self) -> dict[str, Json]:
        """Return the body as a JSON object. Raises UnusableReply."""
        try:
            found: Any = json.loads(self.text)
        except (ValueError, RecursionError):
            raise UnusableReply("an answer that is not JSON") from None
        if not isinstance(found, dict):
            raise UnusableReply("an answer that is not a JSON object")
        return found


async def post(
    transport: httpx.AsyncBaseTransport, url: str, headers: Mapping[str, str], body: Mapping[str, Json]
) -> Reply:
    """Send the body as JSON and return the reply. The caller sets deadlines; the transport is closed afterwards.

    Raises AnswerRefused and whatever httpx and the transport raise.
    """
    bounded = BoundedTransport(transport, AnswerLimits(MAX_ANSWER_BYTES))
    async with httpx.AsyncClient(transport=bounded, timeout=None, trust_env=False, follow_redirects=False) as client:
        response = await client.post(url, headers=headers, json=dict(body))
    return Reply(response.status_code, response.headers, response.content.decode("utf-8", "replace"))
