"""The OpenAPI file. FastAPI generates it from the handlers and schemas; this module adds what operations share.

It adds the introduction, tags, summaries, errors and the header `Idempotency-Key`.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from importlib.resources import files

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from learnloop_service.app.auth.scopes import ANTHROPIC, DOCUMENTATION_FILES, is_public, model_path
from learnloop_service.app.errors import MEDIA_TYPE
from learnloop_service.environment.json_type import Json

_INTRODUCTION = files("learnloop_service.app.http").joinpath("introduction.md").read_text(encoding="utf-8").strip()
_TAGS = {
    "runs": "Start learn-loops, follow them and control them.",
    "documents": "Graphs, scenarios and demonstrations that are stored once and used by many runs.",
    "results": "What a run produced and used: documents, node scores, judge calls, ledger, verification.",
    "events": "The log of a run, as pages or as a stream.",
    "evaluations": "Compare models on the same scenarios.",
    "releases": "Give a candidate a share of the users of a promoted name, and take it back if it does harm.",
    "improvements": "Make an agent better by the cheapest step that is good enough.",
    "schedules": "Start runs at fixed times, from what users asked and consented to train on.",
    "users": "Delete what a user asked, and what was made from it.",
    "sessions": "Your own agent, in any language, with only its base URL and key changed.",
    "trajectories": "The records of rollouts.",
    "ask": "Give a trained agent a task.",
    "feedback": "What happened to emails, and what people think of them.",
    "models": "Models, their checkpoints, and the names that checkpoints are promoted to.",
    "webhooks": "Endpoints that receive events, and the deliveries to them.",
    "keys": "API keys. They need the scope `operator`.",
    "session": "How a browser signs in: it exchanges an API key for a cookie.",
    "catalogue": "What learn-loops can use: backends, environments, judges.",
    "openai": "The models for any OpenAI client, with the base URL `/v1`. Requests, responses and errors are OpenAI's.",
    "health": "Probes, which need no API key.",
}
_PROBLEM = {
    "type": "object",
    "title": "Problem",
    "description": "An error, as defined by RFC 9457.",
    "properties": {
        "type": {"type": "string", "description": "Always `about:blank`: `title` and `status` identify the problem."},
        "title": {"type": "string", "description": "Kind of problem."},
        "status": {"type": "integer", "description": "HTTP status."},
        "detail": {"type": "string", "description": "What is wrong, and what to do about it."},
        "errors": {
            "type": "array",
            "description": "The fields or parameters that are wrong, for an invalid request.",
            "items": {
                "type": "object",
                "properties": {
                    "loc": {
                        "type": "array",
                        "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                        "description": "Where it is: `body`, `query`, `path` or `header`, then names and positions.",
                    },
                    "msg": {"type": "string", "description": "What is wrong with it."},
                    "type": {"type": "string", "description": "Kind of error, such as `missing`."},
                },
                "required": ["loc", "msg", "type"],
            },
        },
        "allowed": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What the status of the run allows, if it does not allow this.",
        },
        "run_id": {"type": "string", "description": "Id of the run that is training the model, if one is."},
    },
    "required": ["type", "title", "status", "detail"],
}
_OPENAI_ERROR = {
    "type": "object",
    "title": "OpenAIError",
    "description": "An error in OpenAI's form.",
    "properties": {
        "error": {
            "type": "object",
            "description": "The error.",
            "properties": {
                "message": {"type": "string", "description": "What is wrong, and what to do about it."},
                "type": {"type": "string", "description": "Kind of error, such as `invalid_request_error`."},
                "param": {
                    "anyOf": [{"type": "string"}, {"type": "null"}],
                    "description": "The parameter that is wrong; null if none is.",
                },
                "code": {
                    "anyOf": [{"type": "string"}, {"type": "null"}],
                    "description": "Code of the error, such as `model_not_found`; null if it has none.",
                },
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_ANTHROPIC_ERROR = {
    "type": "object",
    "title": "AnthropicError",
    "description": "An error in Anthropic's form.",
    "properties": {
        "type": {"type": "string", "const": "error", "description": "Always `error`."},
        "error": {
            "type": "object",
            "description": "The error.",
            "properties": {
                "type": {"type": "string", "description": "Kind of error, such as `invalid_request_error`."},
                "message": {"type": "string", "description": "What is wrong, and what to do about it."},
            },
            "required": ["type", "message"],
        },
    },
    "required": ["type", "error"],
}
SERVERS = [{"url": "./", "description": "The directory of this file, also below the prefix of a proxy."}]
_SWAGGER = DOCUMENTATION_FILES.removeprefix("/")
_FASTAPIS_OWN = ("HTTPValidationError", "ValidationError")
"""FastAPI's schemas for invalid requests, which we do not use."""
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Makes it safe to repeat the request: for 24 hours, the same key returns the first response",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}
_FIRST_SENTENCE = re.compile(r"(.+?)\.(?:\s|$)", re.DOTALL)


def operation_id(route: APIRoute) -> str:
    """Return the name of the handler. Client generators name methods after it."""
    return route.name


def install(app: FastAPI) -> None:
    """Make the application serve the completed file."""
    app.summary = "Trains LLM agents by reinforcement learning, as a service that you run yourself."
    app.description = _INTRODUCTION
    app.license_info = {"name": "Apache-2.0", "identifier": "Apache-2.0"}
    app.openapi_tags = [{"name": name, "description": text} for name, text in _TAGS.items()]
    plain = app.openapi

    @cache  # the walk over all routes takes longer than the reply
    def openapi() -> dict[str, Json]:
        return described(_with_kept_names(plain()))

    app.openapi = openapi  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    async def reference() -> HTMLResponse:
        """Return the API reference. Its addresses are relative, so that it also works below a proxy's prefix."""
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{app.title} - API reference",
            swagger_js_url=f"{_SWAGGER}swagger-ui-bundle.js",
            swagger_css_url=f"{_SWAGGER}swagger-ui.css",
            swagger_favicon_url="favicon.ico",
        )


def _with_kept_names(api: dict[str, Json]) -> dict[str, Json]:
    """Return the document with the names that schemas had before the service's packages became parts of one. FastAPI
    names schemas whose classes have the same name after their modules."""
    renamed: dict[str, Json] = json.loads(json.dumps(api).replace("learnloop_service__app__", "app__"))
    return renamed


def described(api: dict[str, Json]) -> dict[str, Json]:
    """Add what is missing, in place. Call it only once."""
    schemas = api["components"]["schemas"]
    schemas |= {"Problem": _PROBLEM, "OpenAIError": _OPENAI_ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    for name in _FASTAPIS_OWN:
        schemas.pop(name, None)
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            _describe(schemas, path, method, operation)
    return api


def _describe(schemas: dict[str, Json], path: str, method: str, operation: dict[str, Json]) -> None:
    if sentence := _FIRST_SENTENCE.match(operation.get("description", "")):
        operation["summary"] = " ".join(sentence[1].split())
    for response in operation["responses"].values():
        _describe_response(schemas, response)
    operation["responses"].pop("422", None)  # FastAPI's own description
    of_models = model_path(path)
    errors = _errors if of_models is None else _openai_errors
    kind = "Problem" if of_models is None else "AnthropicError" if of_models in ANTHROPIC else "OpenAIError"
    reference = f"#/components/schemas/{kind}"
    for status in () if is_public(path) else errors(path, method, operation):
        operation["responses"][str(status)] = _response(status, reference)
    if method == "post" and _IDEMPOTENCY_KEY not in operation.setdefault("parameters", []):
        operation["parameters"].append(_IDEMPOTENCY_KEY)


def _describe_response(schemas: dict[str, Json], response: dict[str, Json]) -> None:
    """Describe a response by its schema where FastAPI only calls it successful."""
    schema = response.get("content", {}).get("application/json", {}).get("schema", {})
    description = schemas.get(schema.get("$ref", "").rpartition("/")[2], {}).get("description")
    if response["description"] == "Successful Response" and description:
        response["description"] = description


def _errors(path: str, method: str, operation: dict[str, Json]) -> Iterator[int]:
    """Yield the error statuses that an operation of our own API can return."""
    yield from (401, 403, 422, 429, 503)  # 422: every operation rejects unknown query parameters
    asks_about_run = any(parameter["name"] == "run_id" for parameter in operation.get("parameters", ()))
    if "{" in path or method == "post" or asks_about_run:  # an object named in the path, query or body might not exist
        yield 404
    if method != "get" or "{" in path:  # what is asked of an object can need another state of it
        yield 409
    if "requestBody" in operation:
        yield from (400, 413, 415)
    if {"ask", "sessions"} & {*operation.get("tags", ())}:
        yield 502


def _openai_errors(path: str, method: str, operation: dict[str, Json]) -> Iterator[int]:
    """Yield the error statuses that an operation under `/v1` can return."""
    yield from (401, 403, 422, 429, 503)  # 422: a base model with damaged files, or an invalid name
    if "{" in path or method == "post":
        yield 404
    if method != "get":
        yield from (400, 409, 502, 504)
    if "requestBody" in operation:
        yield 413


def _response(status: int, reference: str) -> dict[str, Json]:
    media_type = MEDIA_TYPE if reference.endswith("Problem") else "application/json"
    content = {media_type: {"schema": {"$ref": reference}}}
    response: dict[str, Json] = {"description": HTTPStatus(status).phrase, "content": content}
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds until a retry"}}
    if status == 401:
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}, "description": "Always `Bearer`"}}
    return response
