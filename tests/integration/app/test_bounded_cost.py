"""Bodies that cost more than they weigh, to every operation that takes one: refused, and the service goes on."""

from collections.abc import AsyncIterator

import httpx
import pytest

from learnloop_service.app.main import MAX_BODY_BYTES
from learnloop_service.environment.json_type import Json

BIG = ("/learn-loop", "/graphs", "/scenarios", "/inboxes", "/demonstrations", "/imports")
"""They may hold a graph, an archive of mail, or conversations."""
_ID = "01KAJ3M7F5T2V8Q9X0C4D6E8GA"
COSTLY = {
    "nested 1,000 deep": b'{"a": ' * 1_000 + b"1" + b"}" * 1_000,
    "lists 1,000 deep": b'{"a": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
    "100,000 lists": b"[" * 100_000,
    "a number of 100,000 digits": b'{"iterations": ' + b"9" * 100_000 + b"}",
    "an infinite number": b'{"iterations": 1e999, "learning_rate": -1e999}',
    "a fraction of 100,000 digits": b'{"learning_rate": 0.' + b"0" * 100_000 + b"x}",
    "10,000 fields": b"{" + b",".join(b'"a%d": 1' % n for n in range(10_000)) + b"}",
    "the same field 10,000 times": b"{" + b",".join(b'"a": 1' for _ in range(10_000)) + b"}",
    "escapes": b'{"question": "' + b"\\ud83d" * 10_000 + b'"}',
    "no UTF-8": b'{"question": "' + b"\xc3\x28" * 1_000 + b'"}',
}


@pytest.fixture
def operations(api: Json) -> list[tuple[str, str]]:
    """Method and path of each operation that takes a body."""
    with_body = [
        (method.upper(), "/".join(_ID if part.startswith("{") else part for part in path.split("/")))
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert len(with_body) > 10
    return with_body


def _refused(response: httpx.Response, *statuses: int) -> None:
    what = f"{response.request.method} {response.request.url}: {response.text[:300]}"
    assert response.status_code in statuses, what
    openai = "/v1/" in response.request.url.path  # ours, and that of a session
    assert response.headers["content-type"] == ("application/json" if openai else "application/problem+json"), what
    assert len(response.content) < MAX_BODY_BYTES


async def test_a_costly_body_is_refused_everywhere(
    client: httpx.AsyncClient, operations: list[tuple[str, str]]
) -> None:
    for what, body in COSTLY.items():
        for method, path in operations:
            headers = {"content-type": "application/json"}
            _refused(await client.request(method, path, content=body, headers=headers), 400, 404, 413, 422)
        assert (await client.get("/health/live")).status_code == 200, what
    assert (await client.get("/runs")).json()["items"] == []


async def test_a_body_of_a_byte_too_many_is_refused_everywhere(
    client: httpx.AsyncClient, operations: list[tuple[str, str]]
) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)

    async def unannounced() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    for method, path in operations:
        if path in BIG:
            continue
        _refused(await client.request(method, path, content=body), 413)
        _refused(await client.request(method, path, content=unannounced()), 413)
        _refused(await client.request(method, f"{path}/", content=body), 413)
    _refused(await client.request("GET", "/runs", content=body), 413)
