"""Lints the OpenAPI file: it must be valid, and each operation, parameter and field must be understandable by itself.

    python -m scripts.check_openapi

Prints what is wrong and exits with 1.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute
from jsonschema import Draft202012Validator

from learnloop_service.app.main import create_app
from learnloop_service.app.settings import load_settings
from learnloop_service.environment.json_type import Json

LONGEST_SUMMARY = 80
"""Most characters of a summary, because API references show summaries in their side bar."""
UNLISTED = frozenset(
    {
        "/",
        "/favicon.ico",
        "/docs",
        "/openapi.json",
        "/static-offline-docs",
        "/assets/{version}/{name}",
        "/ui",
        "/ui/{place}",
    }
)
"""Paths of pages and files rather than operations."""
ART_PREFIX = "/v1/preview/"
"""Prefix of the paths that follow ART's protocol, which ART's own client defines."""


def flaws(api: Json) -> list[str]:
    """Return everything that is wrong with the document, one line each."""
    return invalid(api) or undescribed(api)


def invalid(api: Json) -> list[str]:
    """Return the places where it is not a valid OpenAPI document."""
    from openapi_spec_validator import OpenAPIV31SpecValidator  # Importing it takes half a second.

    return [f"{'/'.join(map(str, e.path))}: {e.message}" for e in OpenAPIV31SpecValidator(api).iter_errors()]


def undescribed(api: Json) -> list[str]:
    """Return what a reader misses in a valid document."""
    return [*_of_the_whole(api), *_of_operations(api), *_of_schemas(api)]


def unlisted(routes: Iterable[Any], api: Json) -> list[str]:
    """Return paths that the application serves but the document lacks."""
    served = {route.path_format for route in routes if isinstance(route, APIRoute)}
    missing = served - api["paths"].keys() - UNLISTED
    return sorted(path for path in missing if not path.startswith(ART_PREFIX))


def _of_the_whole(api: Json) -> Iterator[str]:
    if not api["info"].get("description"):
        yield "the document has no introduction"
    tags = {tag["name"] for tag in api.get("tags", ()) if tag.get("description")}
    used = {tag for _, operation in _operations(api) for tag in operation.get("tags", ())}
    yield from (f"tag {name} has no description" for name in sorted(used - tags))
    yield from (f"tag {name} is not used" for name in sorted(tags - used))
    ids = Counter(operation.get("operationId") for _, operation in _operations(api))
    yield from (f"operationId {id} occurs {count} times" for id, count in ids.items() if count > 1)


def _of_operations(api: Json) -> Iterator[str]:
    for operation_name, operation in _operations(api):
        summary = operation.get("summary", "")
        generated = operation["operationId"].replace("_", " ").title()
        if not summary or summary == generated:
            yield f"{operation_name} has no summary"
        if len(summary) > LONGEST_SUMMARY:
            yield f"{operation_name}: its summary has {len(summary)} characters, more than {LONGEST_SUMMARY}"
        if not operation.get("description"):
            yield f"{operation_name} has no description"
        if not operation.get("tags"):
            yield f"{operation_name} has no tag"
        for parameter in operation.get("parameters", ()):
            if not parameter.get("description"):
                yield f"{operation_name}: parameter {parameter['name']} has no description"
        for status, response in operation["responses"].items():
            for name, header in response.get("headers", {}).items():
                if not header.get("description"):
                    yield f"{operation_name} {status}: header {name} has no description"
        yield from _of_examples(api, operation_name, operation)


def _of_examples(api: Json, operation_name: str, operation: Json) -> Iterator[str]:
    for schema in _bodies(api, operation):
        if not schema.get("examples"):
            yield f"{operation_name}: body {schema.get('title')} has no example"
        validator = Draft202012Validator({**schema, "components": api["components"]})
        for example in schema.get("examples", ()):
            yield from (f"{operation_name}: example: {error.message}" for error in validator.iter_errors(example))


def _of_schemas(api: Json) -> Iterator[str]:
    for name, schema in api["components"]["schemas"].items():
        if not schema.get("description") and "enum" not in schema:
            yield f"{name} has no description"
        yield from _of_properties(name, schema)
    for operation_name, operation in _operations(api):
        for schema in _bodies(api, operation):
            yield from _of_properties(f"{operation_name} body", schema)


def _of_properties(owner: str, schema: Json) -> Iterator[str]:
    if isinstance(schema, list):
        for alternative in schema:
            yield from _of_properties(owner, alternative)
        return
    if not isinstance(schema, dict):
        return
    for name, field in schema.get("properties", {}).items():
        if not field.get("description"):
            yield f"{owner}.{name} has no description"
        yield from _of_properties(f"{owner}.{name}", field)
    for key in ("items", "anyOf", "oneOf", "allOf", "additionalProperties"):
        yield from _of_properties(owner, schema.get(key))


def _operations(api: Json) -> Iterator[tuple[str, Json]]:
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def _bodies(api: Json, operation: Json) -> Iterator[Json]:
    """Yield the objects that the operation accepts; several if it accepts alternatives."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    waiting = [content["schema"]] if "schema" in content else []
    while waiting:
        schema = waiting.pop()
        if "$ref" in schema:
            waiting.append(api["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        elif several := schema.get("anyOf") or schema.get("oneOf"):
            waiting.extend(several)
        elif schema.get("type") != "null":
            yield schema


def main() -> None:
    app = create_app(load_settings(_env_file=None, data_dir=Path("nowhere")))
    api = app.openapi()
    problems = [*flaws(api), *(f"{path} is not in the OpenAPI file" for path in unlisted(app.routes, api))]
    for flaw in problems:
        print(flaw)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
