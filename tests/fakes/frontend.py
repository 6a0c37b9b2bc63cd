"""CoDreamer's frontend as seen from outside: a client of the standard library, and a server with scripted faults.

It accepts deliveries that have `run_id`, `final_email` and `node_scores`, and answers any other with 400.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.request import ProxyHandler, Request, build_opener

Fault = Literal["500", "drop", "slow"]


@dataclass
class Frontend:
    """`faults[n]` is what happens to the n-th request; `slow` ones wait for `hurry`.

    `accepted` are the deliveries answered with 200, without repetitions, and `refused` the bodies answered with 400.
    """

    faults: dict[int, Fault] = field(default_factory=dict)
    hurry: threading.Event = field(default_factory=threading.Event)
    attempts: list[tuple[str, bytes]] = field(default_factory=list)
    """Webhook id and body, in the order of arrival."""
    accepted: list[Any] = field(default_factory=list)
    refused: list[Any] = field(default_factory=list)
    url: str = ""
    _ids: set[str] = field(default_factory=set)

    def post_learn_loop(self, service: str, body: Any) -> Any:
        """Start a run, as the frontend does when its user presses start."""
        request = Request(f"{service}/learn-loop", json.dumps(body).encode(), {"Content-Type": "application/json"})
        return json.loads(_get(request)[1])

    def download(self, service: str, results_path: str) -> dict[str, tuple[dict[str, str], bytes]]:
        """Download all of a run's results: headers and bytes by name."""
        results: dict[str, tuple[dict[str, str], bytes]] = {}
        cursor = ""
        while cursor is not None:
            page = json.loads(_get(Request(f"{service}{results_path}?limit=7{cursor}"))[1])
            for item in page["items"]:
                results[item["name"]] = _get(Request(service + item["url"]))
            cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
        return results

    def handle(self, id: str, body: bytes) -> int | None:
        """Return the status to answer with, or None to hang up."""
        fault = self.faults.get(len(self.attempts))
        self.attempts.append((id, body))
        if fault == "drop":
            return None
        if fault == "500":
            return 500
        if fault == "slow":
            self.hurry.wait(timeout=60)
        message = json.loads(body)
        if not _is_right(message):
            self.refused.append(message)
            return 400
        if id not in self._ids:  # a delivery that took too long is sent again
            self._ids.add(id)
            self.accepted.append(message)
        return 200


def _is_right(message: Any) -> bool:
    email, scores = message.get("final_email"), message.get("node_scores")
    return (
        isinstance(message.get("run_id"), str)
        and isinstance(email, dict)
        and isinstance(email.get("subject"), str)
        and isinstance(email.get("body"), str)
        and isinstance(email.get("citations"), list)
        and isinstance(scores, dict)
        and all(isinstance(score, int | float) for score in scores.values())
    )


def _get(request: Request) -> tuple[dict[str, str], bytes]:
    with build_opener(ProxyHandler({})).open(request, timeout=60) as response:
        return {name.lower(): value for name, value in response.headers.items()}, response.read()


@contextmanager
def frontend(**faults: Fault) -> Iterator[Frontend]:
    """Run a frontend while the context is open. For example, `frontend(at_2="500")` fails its third request."""
    it = Frontend({int(name.removeprefix("at_")): fault for name, fault in faults.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = it.handle(self.headers["Webhook-Id"], body)
            if status is not None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    it.url = f"http://127.0.0.1:{server.server_port}/iterations"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield it
    finally:
        it.hurry.set()
        server.shutdown()
        thread.join()
        server.server_close()
