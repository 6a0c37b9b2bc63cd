"""A real S3 server, moto's, on a port of this process, with scripted faults in front of it."""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Response

LOST = -1
"""A fault: the request is executed, but its reply is an error."""


@dataclass
class S3Server:
    """`fault` gets the method and path of each request. It returns None to let it pass, or an error status."""

    url: str
    bucket: str
    fault: Callable[[str, str], int | None] = field(default=lambda method, path: None)
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a client."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "AKIDOFTHETESTS",
            "AWS_SECRET_ACCESS_KEY": "the/secret+of/the/tests",
        }

    def __call__(self, server: Callable[..., Any], environ: dict[str, Any], start_response: Any) -> Any:
        asked = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append(asked)
        if (fault := self.fault(*asked)) is None:
            return server(environ, start_response)
        if fault == LOST:
            list(server(environ, lambda *_: None))
        return Response("<Error><Code>Scripted</Code></Error>", max(fault, 500))(environ, start_response)


class _Silent(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        pass


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Run a server with an empty bucket while the context is open."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    moto = DomainDispatcherApplication(create_backend_app)
    http = make_server(
        "127.0.0.1", 0, lambda environ, start: server(moto, environ, start), True, request_handler=_Silent
    )
    server = S3Server(f"http://127.0.0.1:{http.server_port}", f"bucket-{secrets.token_hex(4)}")
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        httpx.put(f"{server.url}/{server.bucket}").raise_for_status()
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
