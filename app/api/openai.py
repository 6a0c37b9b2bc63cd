"""`/v1`: the models of this service for any OpenAI client. docs/models.md describes their names."""

from typing import Any

from fastapi import Request, Response

from app.api.dependencies import CurrentCaller, CurrentService
from app.api.engine import CurrentEngine, CurrentModels, CurrentProxy
from app.api.routers import keyed_router
from app.errors import InvalidRequest
from app.model_registry.listing import listed, one
from training import strict_json
from training.backends import embedded

router = keyed_router("openai", prefix="/v1", include_in_schema=False)
"""Not in our OpenAPI file: the protocol and its errors are OpenAI's."""

Json = Any


class BadBody(InvalidRequest):
    """OpenAI answers with 400 here, not 422."""

    status = 400


@router.post("/chat/completions")
async def chat_completions(
    models: CurrentModels, caller: CurrentCaller, proxy: CurrentProxy, request: Request
) -> Response:
    """Create a chat completion, streamed or not. The server of the model checks the other fields."""
    body = json_object(await request.body())
    endpoint = await models.endpoint(await models.resolve(caller, _model_of(body)))
    return await proxy.chat(request, endpoint, body)


@router.post("/responses")
async def create_response(
    models: CurrentModels, caller: CurrentCaller, proxy: CurrentProxy, request: Request
) -> Response:
    """Create a response, streamed or not, with a model of the engine, which checks the other fields."""
    body = json_object(await request.body())
    model = await models.resolve(caller, _model_of(body))
    if model.backend != embedded.NAME:
        raise BadBody(
            ("body", "model"), f"{model.name} is on the backend {model.backend!r}, which only has chat completions."
        )
    endpoint = await models.endpoint(model)
    # Whose responses can be continued; callers of all projects share what no project's key reaches.
    whose = {"openai-project": caller.project or ""}
    return await proxy.forward(request, endpoint, "/responses", headers=whose, json={**body, "model": endpoint.model})


@router.get("/models")
async def list_models(
    service: CurrentService, models: CurrentModels, caller: CurrentCaller, engine: CurrentEngine
) -> dict[str, Json]:
    """List the base models, and the models and promoted names of the caller's project."""
    return {"object": "list", "data": await listed(service.sessions, models.base_models, engine, caller)}


@router.get("/models/{name:path}")
async def retrieve_model(
    service: CurrentService, models: CurrentModels, caller: CurrentCaller, engine: CurrentEngine, name: str
) -> dict[str, Json]:
    """Get one model; append `@STEP` for a checkpoint."""
    return await one(service.sessions, models, engine, caller, name)


def _model_of(body: dict[str, Json]) -> str:
    model = body.get("model")
    if not isinstance(model, str):
        raise BadBody(("body", "model"), "model must be a string: the name of a model")
    return model


def json_object(raw: bytes) -> dict[str, Json]:
    """The JSON object of a body. Raises BadBody."""
    try:
        body = strict_json.loads(raw)
    except ValueError as error:
        raise BadBody(("body",), f"The body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadBody(("body",), "The body must be a JSON object.")
    return body
