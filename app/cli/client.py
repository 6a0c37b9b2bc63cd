"""The part of the service's HTTP API that the commands use."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import httpx

from app.cli.terminal import Failure
from environment.json_type import Json
from learnloop import APIError, Unreachable, operations
from learnloop.http_settings import http_settings
from learnloop.steps import SyncSteps

Documents = Literal["scenarios", "demonstrations"]
_EVENTS_AT_ONCE = 1_000


class ServiceUnreachable(Failure):
    """The service cannot be reached at its URL."""


class ServiceRefused(Failure):
    """The service returned an error; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """One Learnloop service. Every method raises ServiceUnreachable or ServiceRefused."""

    def __init__(self, url: str, *, timeout_s: float = 60.0) -> None:
        """Raises Failure if the URL is not valid."""
        try:
            self._http = httpx.Client(**http_settings(url, None, timeout_s))
        except ValueError as error:
            raise Failure(str(error)) from error
        self._http.headers["accept"] = "application/json"
        self.url = url.rstrip("/")

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def start_run(self, request: Mapping[str, Json]) -> Json:
        """Start a run with POST /learn-loop."""
        return self._call("POST", "/learn-loop", json=request)

    def runs(self, limit: int, **filters: Json) -> list[Json]:
        """Return at most `limit` runs that match, newest first or by `sort`."""
        return self._page("/runs", limit, filters)

    def run(self, run_id: str) -> Json:
        """Return the current state of a run."""
        return self._call("GET", f"/runs/{_segment(run_id)}")

    def cancel(self, run_id: str) -> Json:
        """Cancel a run."""
        return self.ask_of(run_id, "cancel")

    def ask_of(self, run_id: str, verb: str, body: Json = None) -> Json:
        """Cancel, pause, resume, retry or fork a run."""
        return self._call("POST", f"/runs/{_segment(run_id)}/{verb}", json=body)

    def comparison(self, run_id: str, other_id: str) -> Json:
        """Return the held-out scenarios that one run answers and another does not."""
        return self._call("GET", f"/runs/{_segment(run_id)}/comparison", params={"other": other_id})

    def edit_run(self, run_id: str, change: Mapping[str, Json]) -> Json:
        """Name, tag, annotate or star a run."""
        return self._call("PATCH", f"/runs/{_segment(run_id)}", json=change)

    def delete_run(self, run_id: str) -> Json:
        """Delete a run that has ended, and return its last state."""
        return self._call("DELETE", f"/runs/{_segment(run_id)}")

    def events(self, run_id: str, after: int = 0) -> Iterator[Json]:
        """Yield the events of a run so far, in order, from the one after the number `after`."""
        return self._items(f"/runs/{_segment(run_id)}/events", {"limit": 200, "cursor": after or None})

    def follow_events(self, run_id: str) -> Iterator[Json]:
        """Yield all events of a run as they happen, until it has ended. An interrupted stream is continued."""
        try:
            yield from SyncSteps(self._http).iterate(operations.events(run_id, 0))
        except Unreachable as error:
            raise ServiceUnreachable(f"no service is reachable at {self.url} ({error})") from error
        except APIError as error:
            raise ServiceRefused(error.status, str(error)) from error

    def iterations(self, run_id: str) -> Iterator[Json]:
        """Yield all iterations of a run with all their figures."""
        return self._items(f"/runs/{_segment(run_id)}/iterations", {})

    def trajectories(self, run_id: str, **filters: str | int) -> Iterator[Json]:
        """Yield a run's trajectories without messages, filtered by `iteration`, `split`, `mode` or `scenario_id`."""
        return self._items(f"/runs/{_segment(run_id)}/trajectories", filters)

    def trajectory(self, trajectory_id: str) -> Json:
        """Return a trajectory with all details."""
        return self._call("GET", f"/trajectories/{_segment(trajectory_id)}")

    def ask(self, request: Mapping[str, Json]) -> Json:
        """Give an agent one task."""
        return self._call("POST", "/ask", json=request)

    def readiness(self) -> Json:
        """Return the reply of /health/ready, whether or not the service is ready."""
        return self._call("GET", "/health/ready", accept=(503,))

    def verify(self, run_id: str) -> Json:
        """Recompute the figures of a run from its trajectories."""
        return self._call("GET", f"/runs/{_segment(run_id)}/verify")

    def report(self, run_id: str, form: Literal["html", "svg"]) -> str:
        """Return the report on a run as a page, or its card."""
        return self.read(f"/runs/{_segment(run_id)}/report", {"form": form})

    def table(self, run_id: str, table: str) -> str:
        """Return a table of a run as CSV."""
        return self.read(f"/runs/{_segment(run_id)}/tables/{table}", {})

    def report_key(self) -> str | None:
        """Return the public key with which the service signs reports; None if it is too old to sign them."""
        try:
            return str(self._call("GET", "/.well-known/learnloop-report-key")["x"])
        except ServiceRefused as error:
            if error.status in (401, 404):
                return None
            raise

    def diagnosis(self, run_id: str) -> Json:
        """Return why a run does not learn."""
        return self._call("GET", f"/runs/{_segment(run_id)}/diagnosis")

    def feedback(self, run_id: str, limit: int) -> list[Json]:
        """Return the newest feedback events on a run's emails, newest first."""
        return self._page(f"/runs/{_segment(run_id)}/feedback", limit, {})

    def session_feedback(self, session_id: str, limit: int) -> list[Json]:
        """Return the newest opinions on a session, newest first."""
        return self._page(f"/sessions/{_segment(session_id)}/feedback", limit, {})

    def send_feedback(self, event: Mapping[str, Json]) -> Json:
        """Post one feedback event."""
        return self._call("POST", "/feedback", json=event)

    def send_simulated(self, events: Sequence[Json]) -> Iterator[Json]:
        """Post events of the market simulator, and yield one response per 1,000 of them."""
        for start in range(0, len(events), _EVENTS_AT_ONCE):
            body = {"source": "simulator", "events": events[start : start + _EVENTS_AT_ONCE]}
            yield self._call("POST", "/feedback", json=body)

    def delete_inbox(self, name: str, version: int | None) -> list[Json]:
        """Delete an uploaded inbox, or one of its versions, and return the deleted versions."""
        versions = {} if version is None else {"version": version}
        deleted = self._call("DELETE", f"/inboxes/{_segment(name)}", params=versions)["deleted"]
        return list(deleted)

    def versions(self, kind: Documents, name: str | None) -> list[Json]:
        """Return the versions of stored documents, of one name or of all, newest first."""
        return list(self._items(f"/{kind}", {"name": name}))

    def delete_versions(self, kind: Documents, name: str, version: int | None) -> list[str]:
        """Delete the documents of a name, or of one of its versions, and return all names that they had.

        Raises Failure if there is no such version.
        """
        found = [each["sha256"] for each in self.versions(kind, name) if version in (None, each["version"])]
        if not found:
            raise Failure(f"there are no {kind} {name if version is None else f'{name}@{version}'!r}")
        deleted = [self._call("DELETE", f"/{kind}/{_segment(each)}")["names"] for each in dict.fromkeys(found)]
        return [each for names in deleted for each in names]

    def store_demonstrations(self, name: str, lines: bytes) -> Json:
        """Store a JSON Lines file of conversations, and return its version."""
        return self._call("POST", "/demonstrations", params={"name": name}, content=lines)

    def import_file(self, content: bytes, **parameters: Json) -> Json:
        """Import a file, and return what it has become."""
        given = {key: value for key, value in parameters.items() if value is not None}
        return self._call("POST", "/imports", params=given, content=content)

    def store_best_rollouts(self, run_id: str, wanted: Mapping[str, Json]) -> Json:
        """Store the best rollouts of a run as demonstrations, and return their version."""
        return self._call("POST", f"/runs/{_segment(run_id)}/demonstrations", json=wanted)

    def node_scores(self, run_id: str, iteration: int) -> Json:
        """Return the node scores after an iteration, by node id."""
        return self._call("GET", f"/runs/{_segment(run_id)}/node-scores", params={"iteration": iteration})[
            "node_scores"
        ]

    def call(self, method: str, path: str, **request: Any) -> Json:
        """Send any request, and return its JSON reply."""
        return self._call(method, path, **request)

    def read(self, path: str, params: Mapping[str, Json]) -> str:
        """Send a GET, and return the text of the reply."""
        return self._response("GET", path, params=params).text

    def _page(self, path: str, limit: int, filters: Mapping[str, Json]) -> list[Json]:
        found: list[Json] = []
        for item in self._items(path, {**filters, "limit": min(limit, 100)}):
            found.append(item)
            if len(found) == limit:
                break
        return found

    def _items(self, path: str, filters: Mapping[str, Json]) -> Iterator[Json]:
        params = {key: value for key, value in filters.items() if value is not None}
        while True:
            page = self._call("GET", path, params=params)
            yield from page["items"]
            if page["next_cursor"] is None:
                return
            params["cursor"] = page["next_cursor"]

    def _call(self, method: str, path: str, *, accept: Container[int] = (), **request: Any) -> Json:
        response = self._response(method, path, accept=accept, **request)
        try:
            return response.json()
        except ValueError as error:
            raise ServiceRefused(response.status_code, f"{self.url}{path} did not return JSON") from error

    def _response(self, method: str, path: str, *, accept: Container[int] = (), **request: Any) -> httpx.Response:
        try:
            response = self._http.request(method, path, **request)
        except httpx.TimeoutException as error:
            raise ServiceUnreachable(f"{method} {self.url}{path} timed out") from error
        except httpx.TransportError as error:
            raise ServiceUnreachable(
                f"no service is reachable at {self.url} ({error}); start one with `learnloop serve`, or give --url"
            ) from error
        if response.is_success or response.status_code in accept:
            return response
        raise ServiceRefused(response.status_code, _problem_text(method, path, response))


def _segment(id: str) -> str:
    """Quote an id as one path segment. A bare `..` would lead to another operation."""
    return quote(id, safe="").replace(".", "%2E")


def _problem_text(method: str, path: str, response: httpx.Response) -> str:
    """Return a problem document (RFC 9457) as one line, or as one line per invalid field."""
    try:
        problem = response.json()
    except ValueError:
        problem = None
    refused = f"{method} {path} failed ({response.status_code})"
    if not isinstance(problem, dict):
        return f"{refused}: {response.reason_phrase}"
    wrong = [
        f"{'.'.join(str(part) for part in error.get('loc', ()) if part != 'body') or 'body'}: {error.get('msg')}"
        for error in problem.get("errors") or ()
    ]
    if wrong:
        return f"{refused}: {wrong[0]}" + "".join(f"\n  {line}" for line in wrong[1:])
    return f"{refused}: {problem.get('detail') or problem.get('title') or response.reason_phrase}"
