"""Requests outside of sessions, in a protocol that the model's server does not support."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from learnloop_service.app.gateway.chunks import Chunk
from learnloop_service.app.gateway.upstream import Upstream
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import Endpoint


@dataclass(frozen=True, slots=True)
class UnrecordedExchange:
    """Asks the server and records nothing."""

    upstream: Upstream
    endpoint: Endpoint
    chat_body: Mapping[str, Json]
    headers: Mapping[str, str]

    async def completion(self) -> dict[str, Json]:
        """Return the completion. Raises the errors of Upstream."""
        return await self.upstream.complete(self.endpoint, {**self.chat_body, "model": self.endpoint.model})

    def chunks(self) -> AsyncGenerator[Chunk]:
        """Return the completion as chunks."""
        body = {**self.chat_body, "model": self.endpoint.model, "stream_options": {"include_usage": True}}
        return self.upstream.chunks(self.endpoint, body)

    async def finish(self, *, delivered: bool) -> None:
        """Do nothing, since there is nothing to finish."""
