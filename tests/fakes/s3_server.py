"""A real S3 server, moto's, on a port of this process. In front of it, signatures are checked and faults scripted."""

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from werkzeug.datastructures import EnvironHeaders
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import Client
from werkzeug.wrappers import Response

_AUTHORIZATION = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/s3/aws4_request, SignedHeaders=([^,]+), Signature=(\w+)")
LOST = -1
"""A fault: the request is executed, but its reply is an error."""


@dataclass
class S3Server:
    """`fault` gets the method and path of each request. It returns None to let it pass, or an error status."""

    url: str
    bucket: str
    key_id: str = "AKIDOFTHETESTS"
    secret: str = "the/secret+of/the/tests"
    fault: Callable[[str, str], int | None] = field(default=lambda method, path: None)
    requests: list[tuple[str, str]] = field(default_factory=list)
    puts: list[tuple[str, int]] = field(default_factory=list)
    """Key and bytes of each PUT, of an object or a part of one."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a client."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    @property
    def objects(self) -> dict[str, bytes]:
        """What is stored, by key."""
        from moto.s3.models import s3_backends

        keys = s3_backends["123456789012"]["aws"].buckets[self.bucket].keys
        return {name: key.value for name, key in keys.items()}

    def __call__(self, server: Callable[..., Any], environ: dict[str, Any], start_response: Any) -> Any:
        method, path = request = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append(request)
        fault = self.fault(*request)
        if fault is None and not self._signed(environ):
            return _refused(403, "SignatureDoesNotMatch")(environ, start_response)
        if fault is None:
            if method == "PUT":
                self.puts.append((path.removeprefix(f"/{self.bucket}/"), int(environ["CONTENT_LENGTH"])))
            return server(environ, start_response)
        if fault == LOST:
            list(server(environ, lambda *_: None))
        return _refused(max(fault, 500), "Scripted")(environ, start_response)

    def _signed(self, environ: dict[str, Any]) -> bool:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        headers = EnvironHeaders(environ)
        if (authorization := _AUTHORIZATION.search(headers.get("authorization", ""))) is None or authorization[
            1
        ] != self.key_id:
            return False
        signed = {name: headers[name] for name in authorization[3].split(";")}
        url = f"{self.url}{environ['REQUEST_URI']}"
        request = AWSRequest(environ["REQUEST_METHOD"], url, headers=signed)
        request.context["timestamp"] = headers["x-amz-date"]
        auth = S3SigV4Auth(Credentials(self.key_id, self.secret), "s3", authorization[2])
        text = auth.string_to_sign(request, auth.canonical_request(request))
        return bool(auth.signature(text, request) == authorization[4])


def _refused(status: int, code: str) -> Response:
    return Response(f"<Error><Code>{code}</Code><Message>as scripted</Message></Error>", status)


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
        assert Client(moto).put(f"/{server.bucket}").status_code == 200
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
