"""A W&B Weave server for its Python package, on a real port: GraphQL to find a project, objects, tables and calls."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from environment.json_type import Json


@dataclass
class WeaveServer:
    """Accepts requests that carry its key."""

    key: str = "w" * 40
    url: str = ""
    received: list[tuple[str, str]] = field(default_factory=list)
    """Path and body of each request."""
    finished: list[Json] = field(default_factory=list)
    """Calls that have ended."""

    def answer(self, path: str, authorization: str | None, body: bytes) -> tuple[int, Json]:
        """Return the status and JSON of the reply."""
        self.received.append((path, body.decode(errors="replace")))
        if path == "/traces/server_info":
            return 200, {"min_required_weave_python_version": "0.0.1"}
        if authorization != "Basic " + base64.b64encode(f"api:{self.key}".encode()).decode():
            return 401, {"message": "who are you?"}
        if path == "/graphql":
            viewer = {"username": "user", "defaultEntity": {"name": "team"}}
            return 200, {"data": {"viewer": viewer, "project": {"name": "mail"}}}
        if path.endswith("/call/end"):
            self.finished.append(json.loads(body)["end"])
        if path.endswith("/calls/complete"):
            self.finished += json.loads(body)["batch"]
        return 200, {"digest": hashlib.sha256(body).hexdigest()[:43], "row_digests": []}

    def summaries(self) -> dict[str, Json]:
        """Return the final summary of each evaluation by the label of its model."""
        ended = [call["output"]["output"] for call in self.finished if call.get("is_eval")]
        return {summary["label"]: summary for summary in ended}

    def count(self, op: str) -> int:
        """Return the number of calls of that op."""
        return sum(f"/op/{op}:" in call.get("op_name", "") for call in self.finished)


@contextmanager
def weave_server() -> Iterator[WeaveServer]:
    """Run a server while the context is open."""
    weave = WeaveServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, reply = weave.answer(self.path, self.headers.get("authorization"), body)
            text = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    weave.url = f"http://127.0.0.1:{http.server_port}"
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield weave
    finally:
        http.shutdown()
        http.server_close()
