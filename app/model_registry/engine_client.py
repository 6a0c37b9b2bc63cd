"""A client of the engine's HTTP API for managing its models and their checkpoints."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from learnloop_service.app.errors import BadGateway, Conflict, NotFound, Unavailable
from learnloop_service.app.processes.engine import EngineHandle
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName

_TIMEOUT_S = 60.0
_ERRORS = {404: NotFound, 409: Conflict, 410: Conflict}


@dataclass(frozen=True, slots=True)
class EngineClient:
    """Calls the engine. Methods raise Unavailable, NotFound, Conflict or BadGateway with the engine's own message."""

    engine: EngineHandle
    http: httpx.AsyncClient

    async def models(self) -> list[dict[str, Json]]:
        """Return the models that can be sampled: base models, and trained models with their checkpoints' steps."""
        models: list[dict[str, Json]] = (await self._call("GET", "/models"))["data"]
        return models

    async def steps(self) -> dict[str, frozenset[int]]:
        """Return the steps of each trained model's checkpoints, by PROJECT/NAME."""
        return {model["id"]: frozenset(model["steps"]) for model in await self.models() if "steps" in model}

    async def trainable_models(self) -> list[dict[str, Json]]:
        """Return all models of the training protocol, with `id`, `project` and `name`."""
        models: list[dict[str, Json]] = (await self._call("GET", "/preview/models"))["data"]
        return models

    async def described(self, path: str) -> dict[str, Json]:
        """Return the engine's description of a model or a training job."""
        description: dict[str, Json] = await self._call("GET", path)
        return description

    async def model_id(self, model: ModelName) -> str:
        """Return the model's id in the training protocol."""
        for description in await self.trainable_models():
            if (description["project"], description["name"]) == (model.project, model.name):
                return str(description["id"])
        raise NotFound(f"There is no model '{model}'.")

    async def create(self, model: ModelName, base_model: str) -> None:
        """Create a model, with checkpoint 0, unless it exists."""
        names = {"project": model.project, "name": model.name, "base_model": base_model}
        await self._call("POST", "/preview/models", json={**names, "return_existing": True})

    async def checkpoints(self, model_id: str) -> list[dict[str, Json]]:
        """Return `{step, metrics, created}` of each checkpoint, oldest first."""
        checkpoints: list[dict[str, Json]] = []
        while True:
            after = {"after": checkpoints[-1]["id"]} if checkpoints else {}
            page = await self._call("GET", f"/preview/models/{model_id}/checkpoints", params=after)
            checkpoints += page["data"]
            if not page["has_more"]:
                return checkpoints

    async def delete_checkpoints(self, model_id: str, steps: list[int]) -> Json:
        """Delete checkpoints. The engine refuses to delete the newest one."""
        return await self._call("DELETE", f"/preview/models/{model_id}/checkpoints", json={"steps": steps})

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[httpx.Response]:
        """Yield a reply that can be read while it arrives."""
        request = await self._request("GET", path, {})
        async with self._answered(request, stream=True) as reply:
            yield reply

    async def _call(self, method: str, path: str, **more: Json) -> Json:
        request = await self._request(method, path, more)
        async with self._answered(request, stream=False) as reply:
            return reply.json() if reply.content else None

    async def _request(self, method: str, path: str, more: Mapping[str, Json]) -> httpx.Request:
        address = await self.engine.address()
        headers = {"authorization": f"Bearer {address.key}"}
        return self.http.build_request(method, f"{address.url}/v1{path}", headers=headers, timeout=_TIMEOUT_S, **more)

    @asynccontextmanager
    async def _answered(self, request: httpx.Request, *, stream: bool) -> AsyncIterator[httpx.Response]:
        try:
            reply = await self._unless_unresponsive(self.http.send(request, stream=stream))
        except httpx.TransportError as error:
            raise Unavailable(f"The engine is unreachable: {type(error).__name__}") from error
        try:
            if not reply.is_success:
                await reply.aread()
                raise _ERRORS.get(reply.status_code, BadGateway)(_message(reply))
            yield reply
        finally:
            await reply.aclose()

    async def _unless_unresponsive(self, sending: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
        """Return the reply. Raises Unavailable as soon as the engine is unresponsive."""
        working = asyncio.create_task(sending)
        silent = asyncio.create_task(self.engine.unresponsive())
        try:
            await asyncio.wait((working, silent), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Unavailable("The engine does not answer.")
            return await working
        finally:
            working.cancel()
            silent.cancel()


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the engine answered {reply.status_code}"
