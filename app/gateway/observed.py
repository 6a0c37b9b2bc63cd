"""Requests outside of sessions whose replies a release counts."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from app.db.database import Database
from app.gateway.chunks import Assembly, Chunk
from app.gateway.unrecorded import UnrecordedExchange
from app.releases.exposures import Observed, failure_recorded, record, record_exposure
from app.releases.split import Exposure
from environment.json_type import Json


@dataclass(frozen=True, slots=True)
class ObservedExchange:
    """Asks the server, and records what the requester met before the reply, or its last part, leaves."""

    exchange: UnrecordedExchange
    database: Database
    exposure: Exposure
    is_replay: bool = False
    begun_at: float = field(default_factory=time.monotonic)

    async def completion(self) -> dict[str, Json]:
        """Return the completion. Raises the errors of Upstream."""
        async with failure_recorded(self.database, self.exposure):
            completion = await self.exchange.completion()
        await self._record(completion)
        return completion

    async def chunks(self) -> AsyncGenerator[Chunk]:
        """Yield the completion as chunks. The exposure is recorded while the first one is sampled."""
        assembly, last = Assembly(), None
        exposing = asyncio.create_task(record_exposure(self.database, self.exposure))
        try:
            async with failure_recorded(self.database, self.exposure), aclosing(self.exchange.chunks()) as chunks:
                async for chunk in chunks:
                    assembly.add(chunk)
                    await exposing
                    if last is not None:
                        yield last
                    last = chunk
            await self._record(assembly.completion())
            if last is not None:
                yield last
        finally:
            await asyncio.wait({exposing})

    async def finish(self, *, delivered: bool) -> None:
        """Do nothing, since everything is recorded by then."""

    async def _record(self, completion: Mapping[str, Json]) -> None:
        seconds = time.monotonic() - self.begun_at
        usage = completion.get("usage") or {}
        observed = Observed(
            malformed=is_malformed(completion), seconds=seconds, completion_tokens=usage.get("completion_tokens")
        )
        await record(self.database, self.exposure, observed)


def is_malformed(completion: Mapping[str, Json]) -> bool:
    """Return whether the completion has a tool call that cannot be read."""
    return any(_is_malformed(choice) for choice in completion.get("choices") or ())


def _is_malformed(choice: Mapping[str, Json]) -> bool:
    if choice.get("malformed_tool_call"):
        return True
    calls = (choice.get("message") or {}).get("tool_calls") or ()
    return not all(_is_object((call.get("function") or {}).get("arguments")) for call in calls)


def _is_object(arguments: Json) -> bool:
    try:
        return isinstance(json.loads(arguments or "{}"), dict)
    except (TypeError, ValueError):
        return False
