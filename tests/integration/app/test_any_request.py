"""Whatever is sent to any operation of the OpenAPI file: no error of ours, and every error is a problem document."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy  # noqa: F401  - Hypothesis looks into it, which fails while the service imports it on a thread
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from app.auth.scopes import is_public
from app.main import create_app
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

EXAMPLES = 25
"""Of each operation."""
_NOT_THERE = {"/ask", "/invoke"}
"""They need the engine, which these tests do not start: 503 is right there."""
_TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=8,
)


def _like(schema: Mapping[str, Any], parts: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Mostly what the schema asks for, sometimes anything."""
    if depth > 6:
        return _ANY
    if "$ref" in schema:
        return _like(parts[schema["$ref"].rpartition("/")[2]], parts, depth + 1)
    made: st.SearchStrategy[Any] = _ANY
    if "enum" in schema:
        made = st.sampled_from(schema["enum"])
    elif alternatives := schema.get("anyOf") or schema.get("oneOf"):
        made = st.one_of([_like(each, parts, depth + 1) for each in alternatives])
    elif schema.get("type") == "object" and "properties" in schema:
        fields = {name: _like(each, parts, depth + 1) for name, each in schema["properties"].items()}
        needed = {name: fields.pop(name) for name in schema.get("required", ()) if name in fields}
        made = st.fixed_dictionaries(needed, optional=fields)
    elif schema.get("type") == "array":
        made = st.lists(_like(schema.get("items", {}), parts, depth + 1), max_size=3)
    elif schema.get("type") in _SIMPLE:
        made = _SIMPLE[schema["type"]](schema)
    return st.integers(0, 19).flatmap(lambda choice: _ANY if choice == 0 else made)


def _integers(schema: Mapping[str, Any]) -> st.SearchStrategy[int]:
    low, high = schema.get("minimum", -10), schema.get("maximum", 1_000)
    return st.integers(min(low, high) - 1, min(high, 2**40) + 1)


_SIMPLE: Mapping[str, Callable[[Mapping[str, Any]], st.SearchStrategy[Any]]] = {
    "integer": _integers,
    "number": lambda _: st.floats(allow_nan=False, allow_infinity=False),
    "boolean": lambda _: st.booleans(),
    "string": lambda schema: _TEXT | st.from_regex(schema["pattern"]) if "pattern" in schema else _TEXT,
    "null": lambda _: st.none(),
}


@pytest.fixture
async def url(data_dir: Path, database_url: str) -> AsyncIterator[str]:
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        yield str(client.base_url)


async def test_no_request_makes_an_error_of_ours(url: str, data_dir: Path, database_url: str) -> None:
    api = create_app(settings_for(data_dir, database_url)).openapi()
    parts = api["components"]["schemas"]
    counted = 0

    def send_any(client: httpx.Client, method: str, path: str, operation: Mapping[str, Any]) -> None:
        @seed(7)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        @given(st.data())
        def each(data: st.DataObject) -> None:
            nonlocal counted
            counted += 1
            _check(path, _send(client, method, path, operation, parts, data))

        each()

    with httpx.Client(base_url=url, trust_env=False, timeout=30) as client:
        for path, methods in api["paths"].items():
            for method, operation in methods.items():
                if "text/event-stream" not in json.dumps(operation["responses"]):  # such a reply has no end
                    await asyncio.to_thread(send_any, client, method.upper(), path, operation)
    assert counted > 300


def _send(
    client: httpx.Client,
    method: str,
    path: str,
    operation: Mapping[str, Any],
    parts: Mapping[str, Any],
    data: st.DataObject,
) -> httpx.Response:
    query: dict[str, str] = {}
    for parameter in operation.get("parameters", ()):
        value = str(data.draw(_like(parameter["schema"], parts), label=parameter["name"]))
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", _quoted(value))
        elif parameter["in"] == "query" and data.draw(st.booleans()):
            query[parameter["name"]] = value
    body = None
    if "requestBody" in operation:
        schema = next(iter(operation["requestBody"]["content"].values()))["schema"]
        body = json.dumps(data.draw(_like(schema, parts), label="body")).encode()
    return client.request(
        method, path, params=query, content=body, headers={"content-type": "application/json"}, follow_redirects=False
    )


def _quoted(value: str) -> str:
    return quote(value, safe="") or "%20"


def _check(path: str, response: httpx.Response) -> None:
    what = f"{response.request.method} {response.request.url} {response.request.content!r}: {response.text}"
    if response.status_code == 503:
        assert path in _NOT_THERE, what
    assert response.status_code < 500 or response.status_code == 503, what
    if response.status_code >= 400 and not is_public(path):
        assert response.headers["content-type"] == "application/problem+json", what
        assert response.json()["status"] == response.status_code, what
