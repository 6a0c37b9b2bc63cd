"""The OpenAPI file: complete, linted, and its examples are requests that the service takes."""

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from fastapi import FastAPI

from learnloop_service.app.main import create_app
from learnloop_service.environment.json_type import Json
from scripts.check_openapi import flaws, invalid, undescribed, unlisted
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.served import served, settings_for

_ID = "01KAJ3M7F5T2V8Q9X0C4D6E8GA"


@pytest.fixture(scope="module")
def app() -> FastAPI:
    return create_app(settings_for(Path("nowhere"), None))


def test_it_says_what_everything_is(api: Json, app: FastAPI) -> None:
    assert flaws(api) == []
    assert unlisted(app.routes, api) == []


def _without_introduction(api: Json) -> None:
    del api["info"]["description"]


def _with_a_twin(api: Json) -> None:
    api["paths"]["/runs"]["get"]["operationId"] = "get_run"


def _named_like_its_handler(api: Json) -> None:
    api["paths"]["/runs"]["get"]["summary"] = "List Runs"


def _without_tag(api: Json) -> None:
    del api["paths"]["/runs"]["get"]["tags"]


def _with_an_unknown_tag(api: Json) -> None:
    api["tags"] = [tag for tag in api["tags"] if tag["name"] != "openai"]


def _with_a_bare_parameter(api: Json) -> None:
    del api["paths"]["/runs"]["get"]["parameters"][0]["description"]


def _with_a_bare_field(api: Json) -> None:
    del api["components"]["schemas"]["RunOut"]["properties"]["status"]["description"]


def _with_a_bare_field_below(api: Json) -> None:
    del api["components"]["schemas"]["Problem"]["properties"]["errors"]["items"]["properties"]["msg"]["description"]


def _with_a_bare_field_of_a_body(api: Json) -> None:
    body = api["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    del body["properties"]["messages"]["description"]


def _without_example(api: Json) -> None:
    del api["components"]["schemas"]["AskRequest"]["examples"]


def _with_a_wrong_example(api: Json) -> None:
    api["components"]["schemas"]["ForkRequest"]["examples"] = [{"checkpoint": -1}]


@pytest.mark.parametrize(
    "spoil",
    [
        *(_without_introduction, _with_a_twin, _named_like_its_handler, _without_tag, _with_an_unknown_tag),
        *(_with_a_bare_parameter, _with_a_bare_field, _with_a_bare_field_below, _with_a_bare_field_of_a_body),
        *(_without_example, _with_a_wrong_example),
    ],
)
def test_a_flaw_is_found(api: Json, spoil: Callable[[Json], None]) -> None:
    spoilt = deepcopy(api)
    spoil(spoilt)
    assert len(undescribed(spoilt)) >= 1


def test_a_document_that_is_none_is_found(api: Json) -> None:
    spoilt = deepcopy(api)
    del spoilt["info"]["version"]
    assert len(invalid(spoilt)) >= 1


def test_a_route_that_is_not_listed_is_found(api: Json) -> None:
    app = FastAPI()
    app.add_api_route("/runs", lambda: None)
    app.add_api_route("/v1/hidden", lambda: None, include_in_schema=False)
    assert unlisted(app.routes, api) == ["/v1/hidden"]


async def test_the_service_takes_every_example(api: Json, data_dir: Path, database_url: str) -> None:
    """Some are about a run that does not exist here, or need the engine; none is an invalid request."""
    statuses: dict[str, int] = {}
    models = [{"model": "openai/gpt-4.1-mini", "base_url": "http://127.0.0.1:9/v1"}]
    options = {"allowed_private_hosts": "127.0.0.0/8", "models": models}
    settings = settings_for(data_dir, database_url, require_keys="never", **options)  # some create keys
    async with served(settings, ScriptedLoop()) as client:
        for path, methods in api["paths"].items():
            for method, operation in methods.items():
                for example in _examples(api, operation):
                    if "url" in example:  # must be an address that can be reached
                        example = {**example, "url": "http://127.0.0.1:18081/hooks"}
                    target = re.sub(r"\{\w+\}", _ID, path)
                    parameters = operation.get("parameters", ())
                    needed = [
                        parameter["name"]
                        for parameter in parameters
                        if parameter["in"] == "query" and parameter["required"]
                    ]
                    query = dict.fromkeys(needed, "example")
                    reply = await client.request(method, target, params=query, json=example)
                    assert reply.status_code in (200, 201, 202, 204, 404, 503), (method, path, example, reply.text)
                    statuses[path] = reply.status_code
    assert len(statuses) > 15
    accepted_paths = {path for path, status in statuses.items() if status < 300}
    assert accepted_paths >= {"/learn-loop", "/graphs", "/scenarios", "/keys", "/webhooks"}


def _examples(api: Json, operation: Json) -> list[Json]:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is None:
        return []
    schemas = [body, *body.get("anyOf", ()), *body.get("oneOf", ())]
    named = [
        api["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
        for reference in schemas
        if "$ref" in reference
    ]
    return [example for schema in (*named, body) for example in schema.get("examples", ())]
