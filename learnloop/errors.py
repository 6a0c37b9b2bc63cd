"""The client's exceptions. All of them are a LearnloopError:

Unreachable            no service answers, and repeating the request did not help
WaitTimeout            the run has not ended within the time given to `wait`
APIError               the service answered with an error
    NotAuthenticated   401: no valid API key
    Forbidden          403: the key does not allow this
    NotFound           404
    Conflict           409: the state does not allow this
    InvalidRequest     413, 415, 422 and other errors of the request; `errors` names the fields
    TooManyRequests    429
    ServiceError       500 to 599
"""

import re
import socket
from typing import Any

import httpx

_ERRNO = re.compile(r"\[Errno -?\d+\] ")


class LearnloopError(Exception):
    """Base class of this client's errors."""


class Unreachable(LearnloopError):
    """No service answers at the address."""


def why_unreachable(error: BaseException | None) -> str:
    """Say in plain words why a request did not reach a server: without the numbers that the system gives its errors."""
    if isinstance(error, httpx.TimeoutException):
        return "it did not answer in time"
    cause = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return "nothing listens there"
        if isinstance(cause, socket.gaierror):
            return "its host name cannot be looked up"
        cause = cause.__cause__ or cause.__context__
    return without_errno(str(error)) or type(error).__name__


def without_errno(text: str) -> str:
    """Return the text of an error of the system without its number."""
    return _ERRNO.sub("", text)


class WaitTimeout(LearnloopError):
    """The run has not ended in time; it continues."""


class APIError(LearnloopError):
    """The service answered with an error; `problem` is its problem document (RFC 9457), `{}` if there is none."""

    def __init__(self, status: int, problem: dict[str, Any], message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
        self.retry_after_s = retry_after_s
        """Seconds after which the service asks to repeat the request; None if it did not say."""

    @property
    def title(self) -> str:
        """The kind of problem, in a few words."""
        return str(self.problem.get("title", ""))

    @property
    def detail(self) -> str:
        """What is wrong with this request."""
        return str(self.problem.get("detail", ""))

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The fields at fault, each with its `loc` and a `msg`; empty if no field is."""
        return list(self.problem.get("errors") or ())

    @property
    def faults(self) -> list[str]:
        """What is wrong with each of these fields, as text."""
        return _faults(self.problem)


class InvalidRequest(APIError):
    """The request is invalid."""


class NotAuthenticated(APIError):
    """The request has no valid API key."""


class Forbidden(APIError):
    """The API key does not allow this."""


class NotFound(APIError):
    """No such run, model, session or other object exists."""


class Conflict(APIError):
    """The current state does not allow this."""


class TooManyRequests(APIError):
    """The API key has made more requests than it is allowed."""


class ServiceError(APIError):
    """The service, or something that it needs, failed."""


_BY_STATUS = {401: NotAuthenticated, 403: Forbidden, 404: NotFound, 409: Conflict, 429: TooManyRequests}


def error_of(response: httpx.Response) -> APIError:
    """Return the error that a response, read whole, reports."""
    problem = _problem(response)
    kind = _BY_STATUS.get(response.status_code, ServiceError if response.is_server_error else InvalidRequest)
    request = f"{response.request.method} {response.request.url.path} failed ({response.status_code})"
    message = "; ".join(_faults(problem)) or problem.get("detail") or problem.get("title") or response.reason_phrase
    return kind(response.status_code, problem, f"{request}: {message}", _retry_after_s(response))


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _faults(problem: dict[str, Any]) -> list[str]:
    return [f"{_location(error)}: {error.get('msg')}" for error in problem.get("errors") or ()]


def _location(error: dict[str, Any]) -> str:
    return ".".join(str(part) for part in error.get("loc", ()) if part != "body") or "body"


def _retry_after_s(response: httpx.Response) -> float | None:
    try:
        return float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
