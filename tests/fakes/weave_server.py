"""W&B on a real port: the GraphQL that finds a project, and Weave's trace server on the routes of the client 0.54.

Calls are stored as that server stores them (a start is completed by its end), and given back to whoever queries them.
"""

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = Any


@dataclass
class WeaveServer:
    """`projects` are those there are, ENTITY/PROJECT; others can be made for `entity` only.

    `status` other than 200 is what the trace server answers; `poison` makes it answer 422 to requests that hold it;
    while `hanging` is set it answers nobody.
    """

    key: str = "w" * 40
    entity: str | None = "team"
    projects: set[str] = field(default_factory=set)
    status: int = 200
    poison: str | None = None
    hanging: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    calls: dict[str, dict[str, Json]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Path and body of each request, whatever became of it."""
    url: str = ""

    @property
    def received(self) -> str:
        """All bodies."""
        return "\n".join(body for _, body in self.requests)

    def sent_to(self, route: str) -> list[Json]:
        """The JSON of the requests whose path ends so, in their order."""
        return [json.loads(body) for path, body in self.requests if path.endswith(route)]

    def answer(self, path: str, authorization: str | None, body: str) -> tuple[int, Json]:
        """Status and JSON; a list is sent line by line."""
        self.requests.append((path, body))
        if self.hanging.is_set():
            self.released.wait()
            return 503, {}
        if authorization != "Basic " + base64.b64encode(f"api:{self.key}".encode()).decode():
            return 401, {"message": "who are you?"}
        if path == "/graphql":
            return 200, self._graphql(json.loads(body))
        if self.status != 200:
            return self.status, {"message": "as scripted"}
        if self.poison is not None and self.poison in body:
            return 422, {"detail": "as scripted"}
        return self._traces(path, json.loads(body) if body.startswith("{") else {})

    def _graphql(self, request: Json) -> Json:
        variables = request.get("variables") or {}
        if "viewer" in request["query"]:
            entity = None if self.entity is None else {"name": self.entity}
            return {"data": {"viewer": {"username": "user", "defaultEntity": entity}}}
        if "upsertModel" in request["query"]:
            if variables["entity"] != self.entity:
                return {"errors": [{"message": "permission denied", "extensions": {"code": "PERMISSION_ERROR"}}]}
            self.projects.add(f"{variables['entity']}/{variables['name']}")
            return {"data": {"upsertModel": {"model": {"name": variables["name"]}}}}
        there = f"{variables['entityName']}/{variables['name']}" in self.projects
        return {"data": {"project": {"name": variables["name"]} if there else None}}

    def _traces(self, path: str, body: Json) -> tuple[int, Json]:
        if path == "/traces/calls/stream_query":
            return 200, [call for call in self.calls.values() if call["project_id"] == body["project_id"]]
        if path == "/traces/server_info":
            return 200, {"min_required_weave_python_version": "0.50.0", "trace_server_version": "99.0.0"}
        if path in ("/traces/obj/create", "/traces/file/create"):
            return 200, {"digest": "digest"}
        match = re.fullmatch(r"/traces/v2/([^/]+/[^/]+)/(calls/complete|call/start|call/end)", path)
        if match is None or match[1] not in self.projects:
            return 404, {"message": f"no such route or project: {path}"}
        records = body["batch"] if match[2] == "calls/complete" else [body[match[2].removeprefix("call/")]]
        if any(record["project_id"] != match[1] for record in records):
            return 400, {"message": "of another project"}
        for record in records:
            self.calls[record["id"]] = self.calls.get(record["id"], {}) | record
        return 200, {}


def _handler(server: WeaveServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
            status, answer = server.answer(self.path, self.headers.get("Authorization"), body)
            lines = answer if isinstance(answer, list) else [answer]
            content = "\n".join(map(json.dumps, lines)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, format: str, *args: object) -> None:
            return None

    return Handler


@contextmanager
def weave_server(**options: Any) -> Iterator[WeaveServer]:
    """A server that listens for as long as the block."""
    server = WeaveServer(**options)
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    listening.daemon_threads = True
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        listening.shutdown()
        thread.join()
        listening.server_close()
