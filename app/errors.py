"""Service errors, and the only mapping from exceptions to problem+json (RFC 9457)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

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

MEDIA_TYPE = "application/problem+json"
DATABASE_DOWN = (
    OperationalError,
    InterfaceError,
    InternalError,
    PoolTimeout,
    PsycopgOperationalError,
    PsycopgInternalError,
)
"""What a lost, full, restarting or read-only database raises: worth a retry, nobody's mistake. (Read-only, as a standby
is after a failover, and a transaction that idled too long are internal errors to Python's drivers.)"""

log = structlog.get_logger(__name__)


class ServiceError(Exception):
    """Something that a caller is told; the message is the problem's `detail`."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def members(self) -> Mapping[str, Any]:
        """Further members of the problem document."""
        return {}

    def headers(self) -> Mapping[str, str]:
        """Further headers of the reply."""
        return {}


class Unauthorized(ServiceError):
    """Nobody who may come in asks."""

    status = 401
    title = "Not authenticated"

    def headers(self) -> Mapping[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ServiceError):
    """The caller may not do that."""

    status = 403
    title = "Forbidden"


class NotFound(ServiceError):
    """There is no such run, trajectory or model."""

    status = 404
    title = "Not found"


class Conflict(ServiceError):
    """The request does not fit the state of things."""

    status = 409
    title = "Conflict"


class StillRunning(Conflict):
    """The same request is under way already."""

    title = "Still running"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class NotAllowed(Conflict):
    """The run is in a state that does not allow what was asked of it."""

    title = "Not allowed in this state"

    def __init__(self, message: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{message}. Allowed: {', '.join(allowed)}.")
        self.allowed = list(allowed)

    def members(self) -> Mapping[str, Any]:
        return {"allowed": self.allowed}


class ModelBusy(Conflict):
    """Another live run trains the model."""

    title = "Model in use"

    def __init__(self, model: str, run_id: str) -> None:
        super().__init__(f"run {run_id} is training {model}; wait for it, cancel it, or name another model")
        self.run_id = run_id

    def members(self) -> Mapping[str, Any]:
        return {"run_id": self.run_id}


class InvalidRequest(ServiceError):
    """A field of the request is well-formed but cannot be used."""

    status = 422
    title = "Invalid request"

    def __init__(self, loc: Sequence[str | int], message: str) -> None:
        super().__init__(message)
        self.loc = list(loc)

    def members(self) -> Mapping[str, Any]:
        return {"errors": [{"loc": self.loc, "msg": str(self), "type": "value_error"}]}


class TooManyRequests(ServiceError):
    """The caller asks too often."""

    status = 429
    title = "Too many requests"

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


class BadGateway(ServiceError):
    """The model behind the service did not give an answer."""

    status = 502
    title = "No answer from the model"


class Unavailable(ServiceError):
    """Something the service needs is not there right now."""

    status = 503
    title = "Not available now"

    def __init__(self, message: str, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(self.retry_after_s)}


def problem(
    status: int, title: str, detail: str, *, headers: Mapping[str, str] | None = None, **members: Any
) -> JSONResponse:
    """A problem document; `type` is about:blank, so `title` and `status` say which kind it is."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **members}
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Answer every error of the service as a problem."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    for kind in DATABASE_DOWN:
        app.add_exception_handler(kind, _service_error)
    app.add_exception_handler(Exception, _unexpected)


def problem_of(error: Exception, path: str) -> JSONResponse:
    """The problem that a service error is, or a database that does not answer (DATABASE_DOWN)."""
    if not isinstance(error, ServiceError):
        log.warning("database not available", path=path, error=str(error).splitlines()[0])
        error = Unavailable("the database does not answer; try again", retry_after_s=2)
    return problem(error.status, error.title, str(error), headers=error.headers(), **error.members())


def _service_error(request: Request, error: Exception) -> JSONResponse:
    return problem_of(error, request.url.path)


def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    details = {
        404: f"there is nothing at {request.url.path}",
        405: f"{request.url.path} does not take {request.method}",
    }
    detail = details.get(error.status_code, str(error.detail))
    headers = {"Allow": ", ".join(_methods(request))} if error.status_code == 405 else error.headers
    return problem(error.status_code, str(error.detail), detail, headers=headers)


def _methods(request: Request) -> list[str]:
    """What the path takes; Starlette names the methods of one of its handlers only."""
    methods = ("DELETE", "GET", "PATCH", "POST", "PUT")
    routes = request.app.routes
    return [m for m in methods if any(r.matches({**request.scope, "method": m})[0] is Match.FULL for r in routes)]


def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    sent = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if request.method == "POST" and not sent.endswith("json"):
        return problem(415, "Unsupported media type", f"send the body as application/json, not {sent}")
    problems = [{"loc": list(each["loc"]), "msg": each["msg"], "type": each["type"]} for each in error.errors()]
    first = problems[0]
    where = ".".join(map(str, first["loc"]))
    return problem(422, "Invalid request", f"{where}: {first['msg']}", errors=problems)


def _unexpected(request: Request, error: Exception) -> JSONResponse:
    # Sent from outside of every middleware: what ResponseHeaders adds elsewhere is added here.
    headers: dict[str, str] = getattr(request.state, "response_headers", {})
    id = headers.get("x-request-id")
    log.error("unexpected error", path=request.url.path, method=request.method, request_id=id, exc_info=error)
    return problem(500, "Internal error", "an unexpected error; the service's log has it", headers=headers)
