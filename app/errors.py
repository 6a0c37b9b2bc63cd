"""Service errors, and the only mapping from exceptions to problem+json (RFC 9457)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from psycopg import InternalError as PsycopgInternalError
from psycopg import OperationalError as PsycopgOperationalError
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from learnloop_service.app.logs import RepeatedLog
from learnloop_service.environment import plugins
from learnloop_service.environment.first_line import first_line
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.training.protocol.meant_path import meant_path
from learnloop_service.training.protocol.validation_message import message_of
from learnloop_service.training.rollout.fork import ReplayDiffers

Resource = TypeVar("Resource")

MEDIA_TYPE = "application/problem+json"
DATABASE_DOWN = (
    OperationalError,
    InterfaceError,
    InternalError,
    PoolTimeout,
    PsycopgOperationalError,
    PsycopgInternalError,
)
"""What drivers raise when the database is lost, full, restarting or read-only. A retry can help. Python's drivers
report a read-only database (such as a standby after a failover) and an idle transaction's timeout as internal errors.
"""

Location = tuple[str | int, ...]
"""Location of a field in the request, like pydantic's `loc`."""

log = structlog.get_logger(__name__)
_repeated_log = RepeatedLog(log)


class ServiceError(Exception):
    """An error that is reported to the caller. Its message is the `detail` of the problem document."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def members(self) -> Mapping[str, Any]:
        """Return additional members of the problem document."""
        return {}

    def headers(self) -> Mapping[str, str]:
        """Return additional headers of the response."""
        return {}


class Unauthorized(ServiceError):
    """The request has no valid credentials."""

    status = 401
    title = "Not authenticated"

    def headers(self) -> Mapping[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ServiceError):
    """The caller is not allowed to do this."""

    status = 403
    title = "Forbidden"


class NotFound(ServiceError):
    """The run, trajectory, model or other object does not exist."""

    status = 404
    title = "Not found"


def existing(resource: Resource | None, what: str, id: str) -> Resource:
    """Return the resource. Raises NotFound if it is None."""
    if resource is None:
        raise NotFound(f"There is no {what} {id!r}.")
    return resource


class Conflict(ServiceError):
    """The request conflicts with the current state."""

    status = 409
    title = "Conflict"


class _Retryable(ServiceError):
    """The same request can succeed after `retry_after_s` seconds, which the header Retry-After names."""

    default_s = 1

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = self.default_s if retry_after_s is None else retry_after_s

    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class StillRunning(_Retryable, Conflict):
    """The same request is already being handled."""

    title = "Still running"


class NotAllowed(Conflict):
    """The status of the run does not allow this operation."""

    title = "Not allowed in this state"

    def __init__(self, message: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{message}. Allowed: {', '.join(allowed)}.")
        self.allowed = list(allowed)

    def members(self) -> Mapping[str, Any]:
        return {"allowed": self.allowed}


class EnvironmentChanged(Conflict):
    """A recorded rollout cannot be replayed: the environment does not do what it did then."""

    title = "Environment changed"

    def __init__(self, differs: ReplayDiffers) -> None:
        super().__init__(f"The rollout cannot be continued from there: {differs}.")
        self.differs = differs

    def members(self) -> Mapping[str, Any]:
        differs = self.differs
        return {
            "turn": differs.turn,
            "tool": differs.tool,
            "recorded": differs.recorded,
            "found": differs.found,
        }


class ModelBusy(Conflict):
    """Another active run is training the model."""

    title = "Model in use"

    def __init__(self, model: str, run_id: str) -> None:
        super().__init__(f"Run {run_id} is training {model}. Wait for it, cancel it, or choose another model.")
        self.run_id = run_id

    def members(self) -> Mapping[str, Any]:
        return {"run_id": self.run_id}


class InvalidRequest(ServiceError):
    """A field of the request is well-formed, but its value cannot be used."""

    status = 422
    title = "Invalid request"

    def __init__(self, loc: Sequence[str | int], message: str) -> None:
        super().__init__(message)
        self.loc = list(loc)

    def members(self) -> Mapping[str, Any]:
        return {"errors": [{"loc": self.loc, "msg": str(self), "type": "value_error"}]}


class TooManyRequests(_Retryable):
    """The caller exceeds the request rate."""

    status = 429
    title = "Too many requests"


class BadGateway(ServiceError):
    """The model did not answer."""

    status = 502
    title = "No answer from the model"


class PluginFailed(ServiceError):
    """An environment or judge from an installed package misbehaved."""

    status = 502
    title = "A plug-in failed"


class Unavailable(_Retryable):
    """Something that the service needs is temporarily unavailable."""

    status = 503
    title = "Temporarily unavailable"
    default_s = 5


def problem(
    status: int, title: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
) -> JSONResponse:
    """Return a problem document. Its `type` is about:blank, so `title` and `status` identify the kind of problem."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **members}
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Turn every error into a problem document."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    for kind in DATABASE_DOWN:
        app.add_exception_handler(kind, _service_error)
    app.add_exception_handler(PluginFault, _plugin_fault)
    app.add_exception_handler(Exception, _unexpected)


def problem_of(error: Exception, path: str) -> JSONResponse:
    """Return the problem document for a service error or an unavailable database (DATABASE_DOWN)."""
    if not isinstance(error, ServiceError):
        _repeated_log.warning("database not available", path=path, error=first_line(error))
        error = Unavailable("The database is unreachable; retry.", retry_after_s=2)
    return problem(error.status, error.title, str(error), headers=error.headers(), **error.members())


def _service_error(request: Request, error: Exception) -> JSONResponse:
    return problem_of(error, request.url.path)


def _plugin_fault(request: Request, error: Exception) -> JSONResponse:
    log.error("plug-in failed", path=request.url.path, exc_info=error)
    return problem_of(PluginFailed(str(error)), request.url.path)


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    details = {
        404: _nothing_at(request),
        405: f"{request.method} is not allowed for {request.url.path}.{_of_missing_package(request)}",
    }
    detail = details.get(error.status_code, str(error.detail))
    headers = {"Allow": ", ".join(_methods(request))} if error.status_code == 405 else error.headers
    return problem(error.status_code, str(error.detail), detail, headers=headers)


def _nothing_at(request: Request) -> str:
    path, root = request.url.path, request.scope.get("root_path", "").rstrip("/")

    def exists(candidate: str) -> bool:
        scope = {**request.scope, "path": f"{root}{candidate}"}
        return any(route.matches(scope)[0] is not Match.NONE for route in request.app.routes)

    text = f"Nothing exists at {path}."
    if (similar_path := meant_path(path.removeprefix(root), exists)) is not None:
        text += f" Did you mean {similar_path}?"
    if path.strip("/") in ("chat/completions", "responses"):
        text += " Clients of OpenAI need the base URL with `/v1` at its end."
    return text + _of_missing_package(request)


def _of_missing_package(request: Request) -> str:
    """Return a sentence about the package whose routes begin like the path, if it is not installed."""
    root = request.scope.get("root_path", "").rstrip("/")
    first = request.url.path.removeprefix(root).strip("/").partition("/")[0]
    if first not in plugins.missing(plugins.ROUTES):
        return ""
    return f" Some of what begins with /{first} is not installed. {plugins.where_to_find(plugins.ROUTES, first)}"


def _methods(request: Request) -> list[str]:
    """Return the methods that the path allows. Starlette lists those of only one of its handlers."""
    methods = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
    routes = request.app.routes
    return [m for m in methods if any(r.matches({**request.scope, "method": m})[0] is Match.FULL for r in routes)]


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if request.method == "POST" and not content_type.endswith("json"):
        return problem(415, "Unsupported media type", f"Send the body as application/json, not {content_type}.")
    faults = error.errors()
    problems = [{"loc": _fields(fault), "msg": message_of(fault), "type": fault["type"]} for fault in faults]
    return problem(422, "Invalid request", _detail(faults[0]), errors=problems)


def _detail(fault: Mapping[str, Any]) -> str:
    match fault:
        # FastAPI's error for malformed JSON
        case {"loc": ("body", int(position)), "type": "json_invalid", "ctx": {"error": reason}}:
            return f"body: not JSON from character {position + 1} on: {reason}"
    return f"{'.'.join(map(str, _fields(fault)))}: {message_of(fault)}"


def _fields(error: Mapping[str, Any]) -> list[str | int]:
    """Return the path of the invalid field. Pydantic adds tags of unions to it; ours all contain a space."""
    *parents, last = error["loc"]
    path = [part for part in parents if not _is_tag(part)]
    return path if _is_tag(last) and error["type"] != "extra_forbidden" else [*path, last]


def _is_tag(part: str | int) -> bool:
    return isinstance(part, str) and " " in part


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # This response bypasses all middleware, so we add the headers that ResponseHeaders would add.
    headers: dict[str, str] = getattr(request.state, "response_headers", {})
    id = headers.get("x-request-id")
    log.error("unexpected error", path=request.url.path, method=request.method, request_id=id, exc_info=error)
    return problem(500, "Internal error", "An unexpected error occurred; see the log of the service.", headers=headers)
