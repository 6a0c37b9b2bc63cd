"""HTTP to a judge model's provider, who is not trusted.

It follows no redirect, which would hand trajectories and the key to another server, and what it reads is bounded.
"""

import ssl
from functools import cache
from typing import Any

import httpx

from environment.bounded_http import AnswerLimits, AnswerRefused, ask_uncompressed, bounded

MAX_ANSWER_BYTES = 1_000_000
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")


class CarefulHttp(httpx.AsyncClient):
    """What cannot be taken is answered as 502. Deadlines are the caller's."""

    def __init__(self) -> None:
        super().__init__(timeout=None, verify=_tls())

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        ask_uncompressed(request)
        response = await super().send(request, **options | {"stream": True, "follow_redirects": False})
        try:
            body = await bounded(response, AnswerLimits(MAX_ANSWER_BYTES)).aread()
        except AnswerRefused as refused:
            return _refusal(request, str(refused))
        finally:
            await response.aclose()
        headers = [item for item in response.headers.multi_items() if item[0] not in _OF_THE_WIRE]
        return httpx.Response(response.status_code, headers=headers, content=body, request=request)


@cache
def make_litellm_careful() -> None:
    """Let what litellm sends by clients of its own go through CarefulHttp: they follow redirects with all headers."""
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler
    from litellm.llms.openai.common_utils import BaseOpenAILLM

    def client(*_: object, **__: object) -> CarefulHttp:
        return CarefulHttp()

    AsyncHTTPHandler.create_client = client  # type: ignore[method-assign]
    BaseOpenAILLM._get_async_http_client = staticmethod(client)  # type: ignore[method-assign]


def _refusal(request: httpx.Request, why: str) -> httpx.Response:
    return httpx.Response(502, json={"error": {"message": why}}, request=request)


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates takes 20 ms."""
    return httpx.create_ssl_context()
