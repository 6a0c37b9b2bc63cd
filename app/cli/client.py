"""The service's HTTP API for the commands, on the transport of the Python client."""

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any, Literal

import httpx
import typer

from learnloop import APIError, Unreachable, operations
from learnloop.errors import why_unreachable
from learnloop.http_settings import DEFAULT_URL, URL_VARIABLE, http_settings
from learnloop.operations import segment
from learnloop.steps import SyncSteps
from learnloop_service.app.cli.terminal import Failure, failing_on
from learnloop_service.environment.json_type import Json

Documents = Literal["scenarios", "demonstrations", "prompts"]
PATIENCE_S = 600.0
"""Time limit, in seconds, of requests that read all rollouts of a run or store a large file."""


class ServiceUnreachable(Failure):
    """The service cannot be reached at its URL."""


class ServiceRefused(Failure):
    """The service returned an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def explained_if_missing(message: str) -> Iterator[None]:
    """Turn the refusal 404 of the block into a Failure with this message."""
    try:
        yield
    except ServiceRefused as error:
        if error.status == 404:
            raise Failure(message) from error
        raise


class Service:
    """One Learnloop service. Every method raises ServiceUnreachable or ServiceRefused."""

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 60.0) -> None:
        """The API key is the environment's by default. Raises Failure if the URL is not valid."""
        with failing_on(ValueError):
            self.http = httpx.Client(**http_settings(url, api_key, timeout_s))
        self._steps = SyncSteps(self.http)
        self.url = url.rstrip("/")

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def within(self, timeout_s: float) -> "Service":
        """Return this service with another time limit for its requests."""
        self.http.timeout = timeout_s
        return self

    def start_run(self, request: Mapping[str, Json]) -> Json:
        """Start a run with POST /learn-loop."""
        return self.call("POST", "/learn-loop", json=request)

    def runs(self, limit: int, **filters: Json) -> list[Json]:
        """Return at most `limit` runs that match, newest first or by `sort`."""
        return self.newest("/runs", limit, **filters)

    def run(self, run_id: str) -> Json:
        """Return the current state of a run."""
        return self.call("GET", f"/runs/{segment(run_id)}")

    def cancel(self, run_id: str) -> Json:
        """Cancel a run."""
        return self.ask_of(run_id, "cancel")

    def ask_of(self, run_id: str, verb: str, body: Json = None) -> Json:
        """Cancel, pause, resume, retry or fork a run."""
        return self.call("POST", f"/runs/{segment(run_id)}/{verb}", json=body)

    def delete_run(self, run_id: str) -> Json:
        """Delete a run that has ended, and return its last state."""
        return self.call("DELETE", f"/runs/{segment(run_id)}")

    def events(self, run_id: str, after: int = 0) -> Iterator[Json]:
        """Yield the events of a run so far, in order, from the one after the number `after`."""
        return self.items(f"/runs/{segment(run_id)}/events", limit=200, cursor=after or None)

    def follow_events(self, run_id: str) -> Iterator[Json]:
        """Yield all events of a run as they happen, until it has ended. An interrupted stream is continued."""
        with self._failures():
            yield from self._steps.iterate(operations.events(run_id, 0))

    def iterations(self, run_id: str) -> Iterator[Json]:
        """Yield all iterations of a run with all their figures."""
        return self.items(f"/runs/{segment(run_id)}/iterations")

    def trajectories(self, run_id: str, **filters: str | int) -> Iterator[Json]:
        """Yield a run's trajectories without messages, filtered by `iteration`, `split`, `mode` or `scenario_id`."""
        return self.items(f"/runs/{segment(run_id)}/trajectories", **filters)

    def trajectory(self, trajectory_id: str) -> Json:
        """Return a trajectory with all details."""
        return self.call("GET", f"/trajectories/{segment(trajectory_id)}")

    def ask(self, request: Mapping[str, Json]) -> Json:
        """Give an agent one task."""
        return self.call("POST", "/ask", json=request)

    def readiness(self) -> Json:
        """Return the reply of /health/ready, whether or not the service is ready."""
        return self.call("GET", "/health/ready", accept=(503,))

    def report(self, run_id: str, form: Literal["html", "svg"]) -> str:
        """Return the report on a run as a page, or its card."""
        return self.read(f"/runs/{segment(run_id)}/report", {"form": form})

    def diagnosis(self, run_id: str) -> Json:
        """Return why a run does not learn."""
        return self.call("GET", f"/runs/{segment(run_id)}/diagnosis")

    def versions(self, kind: Documents, name: str | None) -> list[Json]:
        """Return the versions of stored documents, of one name or of all, newest first."""
        return list(self.items(f"/{kind}", name=name))

    def delete_versions(self, kind: Documents, name: str, version: int | None) -> list[str]:
        """Delete the documents of a name, or of one of its versions, and return all names that they had.

        Raises Failure if there is no such version.
        """
        hashes = [row["sha256"] for row in self.versions(kind, name) if version in (None, row["version"])]
        if not hashes:
            raise Failure(f"there are no {kind} {name if version is None else f'{name}@{version}'!r}")
        deleted = [self.call("DELETE", f"/{kind}/{segment(sha256)}")["names"] for sha256 in dict.fromkeys(hashes)]
        return [versioned for names in deleted for versioned in names]

    def import_file(self, content: bytes, **parameters: Json) -> Json:
        """Import a file, and return what it has become."""
        return self.call("POST", "/imports", params=parameters, content=content)

    def call(
        self,
        method: str,
        path: str,
        *,
        json: Json = None,
        content: bytes | None = None,
        params: Mapping[str, Json] | None = None,
        key: str | None = None,
        accept: Container[int] = (),
    ) -> Json:
        """Send any request, and return its JSON reply. Parameters that are None are not sent; `key` is the
        Idempotency-Key; statuses in `accept` are no errors."""
        response = self.response(method, path, content if json is None else json, params or {}, key, accept)
        try:
            return response.json()
        except ValueError as error:
            raise ServiceRefused(response.status_code, f"{self.url}{path} did not return JSON") from error

    def read(self, path: str, params: Mapping[str, Json] | None = None) -> str:
        """Send a GET, and return the text of the reply."""
        return self.response("GET", path, None, params or {}, None, ()).text

    def newest(self, path: str, limit: int, **filters: Json) -> list[Json]:
        """Return at most `limit` items of a list."""
        return list(islice(self.items(path, **filters, limit=min(limit, 100)), limit))

    def items(self, path: str, **filters: Json) -> Iterator[Json]:
        """Yield all items of a list, page by page."""
        while True:
            page = self.call("GET", path, params=filters)
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            filters["cursor"] = page["next_cursor"]

    def response(
        self, method: str, path: str, body: Json, params: Mapping[str, Json], key: str | None, accept: Container[int]
    ) -> httpx.Response:
        """Send any request as `call` does, and return the response."""
        query = httpx.QueryParams({name: value for name, value in params.items() if value is not None})
        target = f"{path}?{query}" if query else path
        with self._failures():
            return self._steps.run(operations.request(method, target, body, key, accept=accept, patient=False))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn errors of the client into those of commands."""
        try:
            yield
        except Unreachable as error:
            lost = error.__cause__
            if isinstance(lost, httpx.TimeoutException):
                raise ServiceUnreachable(f"{lost.request.method} {lost.request.url} timed out") from error
            raise ServiceUnreachable(
                f"no service is reachable at {self.url}: {why_unreachable(lost)}; start one "
                "with `learnloop serve`, or give --url"
            ) from error
        except APIError as error:
            lines = "\n  ".join(error.faults)
            raise ServiceRefused(error.status, str(error).replace("; ".join(error.faults), lines)) from error


def _opened(context: typer.Context, service: Service) -> Service:
    """Make the service known to callbacks of other parameters, and close it at the end."""
    context.obj = service
    context.call_on_close(service.close)
    return service


ServiceAt = Annotated[
    Service,
    typer.Option(
        "--url",
        parser=Service,
        callback=_opened,
        is_eager=True,
        metavar="<str>",
        envvar=URL_VARIABLE,
        help="URL of the service.",
    ),
]
"""The service at a URL, open for the duration of the command."""
HERE: Any = DEFAULT_URL
"""The default of a ServiceAt."""
