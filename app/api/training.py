"""`/v1/preview`: ART's training protocol for the engine, authenticated with this service's keys. See docs/models.md."""

import re
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentService
from learnloop_service.app.api.engine import CurrentEngine, CurrentModels, CurrentProxy
from learnloop_service.app.api.raw_bodies import BadBody, json_object
from learnloop_service.app.api.routers import openai_router
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.proxy import ChatProxy
from learnloop_service.app.model_registry.trainable import TrainableModels
from learnloop_service.environment.json_type import Json
from learnloop_service.training.backends.base import Endpoint

router = openai_router("training", prefix="/v1/preview", include_in_schema=False)
"""Excluded from our OpenAPI file, because the protocol and its errors are ART's."""

PREFIX = "/v1/preview/"
JOB_PATHS = (f"{PREFIX}training-jobs", f"{PREFIX}sft-training-jobs")
"""Paths whose bodies contain all trajectories of a training step."""
_DEADLINE_S = 60.0
"""Deadline of a whole reply. Requests for events can wait for half of it."""
_LOCKED_DEADLINE_S = 25.0
"""Deadline of replies while no run of the model can start. It is shorter than the idle timeout of transactions."""
_LEADING_MODEL_ID = re.compile(rb'\s*\{\s*"model_id"\s*:\s*"([A-Za-z0-9_-]{1,64})"\s*[,}]')


async def _trainable(
    request: Request, service: CurrentService, caller: CurrentCaller, engine: CurrentEngine
) -> TrainableModels:
    known_jobs = request.app.state.known_jobs
    return TrainableModels(caller, service.database, engine, service.connect, service.store, known_jobs)


class _EngineForwarder:
    """Forwards requests to the engine's `/v1` and streams the replies back."""

    def __init__(self, request: Request, proxy: CurrentProxy, engine: CurrentEngine) -> None:
        self._request = request
        self._proxy: ChatProxy = proxy
        self._engine: EngineClient = engine

    async def send(self, path: str, *, deadline_s: float = _DEADLINE_S, **more: Any) -> Response:
        """Forward the request with its method and query. Raises Unavailable, BadGateway or NoAnswerInTime."""
        address = await self._engine.engine.address()
        endpoint = Endpoint(f"{address.url}/v1", address.key, "The engine")
        params = self._request.query_params
        return await self._proxy.forward(self._request, endpoint, path, params=params, deadline_s=deadline_s, **more)


Trainable = Annotated[TrainableModels, Depends(_trainable)]
ToEngine = Annotated[_EngineForwarder, Depends()]


@router.post("/models")
async def create_model(request: Request, models: CurrentModels, trainable: Trainable, engine: ToEngine) -> Response:
    """Create a model in the caller's project, or return the existing one where the body says so."""
    body = json_object(await request.body())
    return await engine.send("/preview/models", json=await trainable.creation(models, body))


@router.get("/models")
async def list_models(trainable: Trainable) -> dict[str, Json]:
    """List the caller's models."""
    return {"data": await trainable.listed(), "has_more": False}


@router.get("/models/{model_id}")
async def get_model(model_id: str, trainable: Trainable, engine: ToEngine) -> Response:
    """Get one model, with its newest step."""
    await trainable.name(model_id)
    return await engine.send(f"/preview/models/{model_id}")


@router.delete("/models/{model_id}")
async def delete_model(model_id: str, trainable: Trainable, engine: ToEngine) -> Response:
    """Delete a model that no run needs."""
    async with trainable.to_delete(await trainable.name(model_id)):
        return await engine.send(f"/preview/models/{model_id}", deadline_s=_LOCKED_DEADLINE_S)


@router.post("/models/{model_id}/log")
async def log_trajectories(model_id: str, request: Request, trainable: Trainable, engine: ToEngine) -> Response:
    """Keep logged trajectories beside the model's checkpoints."""
    await trainable.name(model_id)
    return await engine.send(f"/preview/models/{model_id}/log", content=await request.body())


@router.get("/models/{model_id}/checkpoints")
async def list_checkpoints(model_id: str, trainable: Trainable, engine: ToEngine) -> Response:
    """List a model's checkpoints."""
    await trainable.name(model_id)
    return await engine.send(f"/preview/models/{model_id}/checkpoints")


@router.delete("/models/{model_id}/checkpoints")
async def delete_checkpoints(model_id: str, request: Request, trainable: Trainable, engine: ToEngine) -> Response:
    """Delete those checkpoints that nothing needs."""
    body = json_object(await request.body())
    steps = body.get("steps")
    if not isinstance(steps, list) or not all(type(step) is int and 0 <= step < 2**31 for step in steps):
        raise BadBody(("body", "steps"), "steps must be a list of whole numbers from 0 up")
    async with trainable.to_delete_checkpoints(await trainable.name(model_id), steps):
        return await engine.send(
            f"/preview/models/{model_id}/checkpoints", deadline_s=_LOCKED_DEADLINE_S, json={"steps": steps}
        )


@router.post("/training-jobs")
@router.post("/sft-training-jobs")
async def create_job(request: Request, trainable: Trainable, engine: ToEngine) -> Response:
    """Queue a training job for a model that no run is training."""
    raw = await request.body()
    model_id = _model_id(raw)
    async with trainable.to_train(await trainable.name(model_id)):
        kind = request.url.path.rpartition("/")[2]
        only = {"x-only-model": model_id}
        return await engine.send(f"/preview/{kind}", deadline_s=_LOCKED_DEADLINE_S, content=raw, headers=only)


@router.get("/training-jobs/{job_id}")
@router.get("/sft-training-jobs/{job_id}")
async def get_job(job_id: str, trainable: Trainable, engine: ToEngine) -> Response:
    """Get a training job with all its events."""
    await trainable.require_job(job_id)
    return await engine.send(f"/preview/training-jobs/{job_id}")


@router.get("/training-jobs/{job_id}/events")
@router.get("/sft-training-jobs/{job_id}/events")
async def list_events(job_id: str, trainable: Trainable, engine: ToEngine) -> Response:
    """List the events of a training job."""
    await trainable.require_job(job_id)
    return await engine.send(f"/preview/training-jobs/{job_id}/events")


def _model_id(raw: bytes) -> str:
    """Return the model's id from a body of many megabytes without decoding it. ART's client puts the id first. The
    engine decodes the body and rejects it if it names another model later."""
    if match := _LEADING_MODEL_ID.match(raw):
        return match[1].decode()
    message = "The body must be a JSON object whose first field is model_id, a model's id, before what is large."
    raise BadBody(("body", "model_id"), message)
