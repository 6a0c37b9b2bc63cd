"""W&B's HTTP APIs, as far as traces need them: GraphQL for the project, Weave's trace server for the calls.

They are spoken plainly, on the routes that the package `weave` 0.54 uses, and not through that package: its import
takes seconds and hooks into `wandb`, it reports to its makers, and at exit it waits for its server without a deadline.
"""

import json
from collections.abc import Iterable
from functools import cached_property
from urllib.parse import quote

import httpx
from pydantic import HttpUrl

from environment.base import Json

_TIMEOUT_S = 10.0
_CLOUD = "https://api.wandb.ai"
_CLOUD_TRACES = "https://trace.wandb.ai"
_REFUSALS = (400, 413, 422)

_WHO_AM_I = "query DefaultEntity { viewer { defaultEntity { name } } }"
_PROJECT = """query Project($name: String!, $entityName: String!) {
    project(name: $name, entityName: $entityName) { name }
}"""
_CREATE_PROJECT = """mutation UpsertModel($name: String!, $entity: String!) {
    upsertModel(input: { name: $name, entityName: $entity }) { model { name } }
}"""


class Refused(Exception):
    """The server will not take these calls, now or later."""


class ProjectUnavailable(Exception):
    """The project is neither there nor ours to make."""


class WeaveApi:
    """One project. Blocking; for one thread. Besides what is named, everything raises httpx.HTTPError."""

    def __init__(self, project: str, api_key: str, *, base_url: HttpUrl, trace_url: HttpUrl | None = None) -> None:
        """`project` is ENTITY/PROJECT, or PROJECT of the key's own entity."""
        base = str(base_url).rstrip("/")
        self._entity, _, self._name = project.rpartition("/")
        self._graphql_url = f"{base}/graphql"
        cloud_or_own = _CLOUD_TRACES if base == _CLOUD else f"{base}/traces"
        self._trace_url = str(trace_url).rstrip("/") if trace_url else cloud_or_own
        self._auth = httpx.BasicAuth("api", api_key)
        self.project: str | None = None
        """ENTITY/PROJECT once it is open."""

    @cached_property
    def _http(self) -> httpx.Client:
        return httpx.Client(auth=self._auth, timeout=_TIMEOUT_S)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def open(self) -> None:
        """Find the project, or make it. Raises ProjectUnavailable."""
        entity = self._entity or self._default_entity()
        names = {"entityName": entity, "name": self._name}
        found = self._graphql(_PROJECT, **names).get("project")
        if found is None:
            made = self._graphql(_CREATE_PROJECT, entity=entity, name=self._name).get("upsertModel") or {}
            found = made.get("model")
        if found is None:
            raise ProjectUnavailable(f"no project {self._name} of {entity}, and none could be made")
        self.project = f"{entity}/{found['name']}"

    def start(self, call: bytes) -> None:
        """Send the start of a call that goes on for long. Raises Refused. Calls are JSON objects, see `tracing`."""
        self._send("call/start", b'{"start":%b}' % self._ours(call))

    def end(self, call: bytes) -> None:
        """Send the end of a call whose start was sent. Raises Refused."""
        self._send("call/end", b'{"end":%b}' % self._ours(call))

    def complete(self, calls: Iterable[bytes]) -> None:
        """Send whole calls. Raises Refused."""
        self._send("calls/complete", b'{"batch":[%b]}' % b",".join(map(self._ours, calls)))

    def _ours(self, call: bytes) -> bytes:
        return b'{"project_id":%b,%b' % (json.dumps(self.project).encode(), call[1:])

    def _send(self, route: str, body: bytes) -> None:
        entity, _, name = str(self.project).partition("/")
        url = f"{self._trace_url}/v2/{quote(entity, safe='')}/{quote(name, safe='')}/{route}"
        response = self._http.post(url, content=body, headers={"Content-Type": "application/json"})
        if response.status_code in _REFUSALS:
            raise Refused(f"{response.status_code}: {response.text[:300]}")
        response.raise_for_status()

    def _default_entity(self) -> str:
        viewer = self._graphql(_WHO_AM_I).get("viewer") or {}
        if name := (viewer.get("defaultEntity") or {}).get("name"):
            return str(name)
        raise ProjectUnavailable("the key has no entity of its own: name the project as ENTITY/PROJECT")

    def _graphql(self, query: str, **variables: str) -> dict[str, Json]:
        response = self._http.post(self._graphql_url, json={"query": query, "variables": variables})
        answer = response.raise_for_status().json()
        if errors := answer.get("errors"):
            raise ProjectUnavailable(str(errors[0].get("message"))[:300])
        return answer.get("data") or {}
