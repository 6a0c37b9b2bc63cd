"""A W&B Weave server for its Python package, on a real port: GraphQL to find a project, objects, tables and calls."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from learnloop_service.environment.json_type import Json
from tests.fakes.answering import Answer, answering


@dataclass
class WeaveServer:
    """Accepts requests that carry its key."""

    key: str = "w" * 40
    url: str = ""
    received: list[tuple[str, str]] = field(default_factory=list)
    """Path and body of each request."""
    finished: list[Json] = field(default_factory=list)
    """Calls that have ended."""

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        status, content = self._answer(path, headers.get("authorization"), body)
        return status, {"content-type": "application/json"}, json.dumps(content).encode()

    def _answer(self, path: str, authorization: str | None, body: bytes) -> tuple[int, Json]:
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
    with answering(weave.answer) as weave.url:
        yield weave
