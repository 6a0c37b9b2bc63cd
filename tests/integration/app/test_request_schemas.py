"""The OpenAPI file, walked whole: no field too many goes in or out, and no operation asks for a scope too few."""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from learnloop_service.app.auth.scopes import Scope, is_public, needed
from learnloop_service.app.db.tables import Base
from learnloop_service.environment.json_type import Json
from tests.integration.app.keyed import OPERATOR_KEY, Keyed, bearer, keyed

_STREAMED = ("/graphs", "/scenarios", "/demonstrations")
"""Documents that are sent as they are stored."""
INTERNAL = {
    *("owner", "lease_until", "epoch", "pause_requested", "previous_secret", "request_sha256"),
    *("model_project", "model_name", "next_iteration", "phase_done", "phase_total", "kept_at", "against_id"),
}
"""Columns that are nobody's business."""
CODE = (
    *(
        "os:system",
        "os.system",
        "learnloop_service.environment.email_search.environment:build",
        "builtins:eval",
        "__import__('os')",
    ),
    *("environment/email_search", "email_search;id", "http://x.example/judge.py", "npx some-server", "python -c 1"),
)
"""What would run, if names were more than names."""


@pytest.fixture
async def service(data_dir: Path, database_url: str) -> AsyncIterator[Keyed]:
    async with keyed(data_dir, database_url, rate_per_s=0) as keyed_service:
        yield keyed_service


def _operations(api: Json) -> Iterator[tuple[str, str, Json]]:
    """Of our own API: OpenAI's takes what its clients send, and has its own form of errors."""
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            if "/v1/" not in path:  # a session has it below itself
                yield method.upper(), path, operation


def _inside(api: Json, schema: Json, names: set[str]) -> Iterator[Json]:
    """The schema and all that it is made of."""
    if isinstance(schema, list):
        for part in schema:
            yield from _inside(api, part, names)
    if not isinstance(schema, dict):
        return
    name = schema.get("$ref", "").rpartition("/")[2]
    if name and name not in names:
        names.add(name)
        yield from _inside(api, api["components"]["schemas"][name], names)
    yield schema
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            yield from _inside(api, list(value.values()), names)
        elif key in ("items", "anyOf", "oneOf", "allOf", "additionalProperties"):
            yield from _inside(api, value, names)


def _takes_json(operation: Json) -> bool:
    """Whether the body is JSON, and not a file such as the mail of an inbox."""
    return "application/json" in operation.get("requestBody", {}).get("content", {})


def _body(operation: Json) -> Json:
    return operation["requestBody"]["content"]["application/json"]["schema"]


def test_every_part_of_every_body_refuses_other_fields(api: Json) -> None:
    parts = 0
    for method, path, operation in _operations(api):
        if not _takes_json(operation):
            continue
        for part in _inside(api, _body(operation), set()):
            if "properties" in part and part["properties"].keys() != {"sha256"}:  # that one the service checks itself
                parts += 1
                assert part.get("additionalProperties") is False, (method, path, part.get("title"))
    assert parts > 20


def test_every_text_and_list_of_a_reply_has_a_shape(api: Json) -> None:
    for method, path, operation in _operations(api):
        for status, reply in operation["responses"].items():
            for kind, content in reply.get("content", {}).items():
                if int(status) < 300 and kind == "application/json" and not path.startswith(_STREAMED):
                    assert content.get("schema") or path.endswith(("/graph", "/report")), (method, path)
                names = {
                    name for part in _inside(api, content.get("schema"), set()) for name in part.get("properties", ())
                }
                assert not names & INTERNAL, (method, path)


async def test_no_column_can_be_set(service: Keyed, api: Json) -> None:
    columns = sorted({column.name for table in Base.metadata.sorted_tables for column in table.columns})
    headers = bearer(OPERATOR_KEY)
    for method, path, operation in _operations(api):
        if not _takes_json(operation):
            continue
        names = {name for part in _inside(api, _body(operation), set()) for name in part.get("properties", ())}
        target = re.sub(r"\{[^}]*\}", "01KAJ3M7F5T2V8Q9X0C4D6E8GA", path)
        body = {name: "canary" for name in columns if name not in names}
        reply = await service.client.request(method, target, headers=headers, json=body)
        assert reply.status_code == 422, (method, path, reply.text)
        refused = {error["loc"][-1] for error in reply.json()["errors"] if error["type"] == "extra_forbidden"}
        assert refused >= body.keys(), (method, path)


async def test_every_route_asks_for_its_scope(service: Keyed, api: Json) -> None:
    for scope in Scope:
        headers = await service.headers(scopes=[scope])
        others = 0
        for method, path, _ in _operations(api):
            if is_public(path) or needed(method, path) in (scope, None):
                continue
            others += 1
            target = re.sub(r"\{[^}]*\}", "01KAJ3M7F5T2V8Q9X0C4D6E8GA", path)
            reply = await service.client.request(method, target, headers=headers, json={})
            assert reply.status_code == 403, (scope, method, path)
            assert reply.headers["content-type"] == "application/problem+json"
        assert others > 10
    of_operators = [(method, path) for method, path, _ in _operations(api) if path.startswith(("/keys", "/settings"))]
    assert {path for _, path in of_operators} >= {"/keys", "/settings"}
    assert {needed(method, path) for method, path in of_operators} == {Scope.OPERATOR}


async def test_no_name_is_code(service: Keyed) -> None:
    headers = bearer((await service.new(scopes=Scope)).key)
    for name in CODE:
        bodies: list[Json] = [
            {"environment": {"name": name}},
            {"judge": {"name": name}},
            {"judge": [{"name": name, "weight": 1}, {"name": "reference", "weight": 1}]},
            {"backend": name},
            {"environment": {"config": {"tools": [name]}}},
            {"environment": {"config": {"mcp": {"command": name}}}},
            {"model": {"base_model": name}},
        ]
        for body in bodies:
            reply = await service.client.post("/learn-loop", headers=headers, json=body)
            assert reply.status_code == 422, (body, reply.text)
    assert (await service.client.get("/runs", headers=headers)).json()["items"] == []
