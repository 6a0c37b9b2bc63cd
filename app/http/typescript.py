"""TypeScript types for the schemas of an OpenAPI document."""

import re
from collections.abc import Iterable, Iterator

from learnloop_service.environment.json_type import Json

_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_HEAD = "// Types of Learnloop's API, from its OpenAPI document. Replies have every field; requests need few.\n"


def client_types(api: Json) -> str:
    """Return the types of every request and reply. An unnamed request body is named after its operation."""
    schemas: dict[str, Json] = dict(api["components"]["schemas"])
    bodies = dict(_bodies(api))
    schemas |= {name: schema for name, schema in bodies.items() if "$ref" not in schema}
    of_requests = reached(schemas, {name.rpartition("/")[2] for schema in bodies.values() for name in _names(schema)})
    of_requests |= bodies.keys()
    return _HEAD + "".join(declared(name, schemas[name], of_request=name in of_requests) for name in sorted(schemas))


def _bodies(api: Json) -> Iterator[tuple[str, Json]]:
    """Yield the JSON bodies of requests, each with a name."""
    for operations in api["paths"].values():
        for operation in operations.values():
            schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            if schema:
                words = re.findall(r"[A-Za-z0-9]+", operation["operationId"])
                yield "".join(f"{word[0].upper()}{word[1:]}" for word in words) + "Body", schema


def reached(schemas: Json, names: Iterable[str]) -> set[str]:
    """Return the named schemas and all schemas that they refer to, directly or indirectly."""
    reachable: set[str] = set()
    waiting = list(names)
    while waiting:
        if (name := waiting.pop()) not in reachable:
            reachable.add(name)
            waiting.extend(_names(schemas[name]))
    return reachable


def _names(schema: Json) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for part in schema.values():
            yield from _names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _names(part)


def declared(name: str, schema: Json, *, of_request: bool = False) -> str:
    """Return the declaration of a type. If it is part of a request, optional fields can be left out."""
    if "properties" not in schema:
        return f"\nexport type {name} = {_type(schema)};\n"
    optional = set(schema["properties"]) - set(schema.get("required", ())) if of_request else set()
    fields = "".join(
        f'  "{field}"{"?" if field in optional else ""}: {_type(field_schema)};\n'
        for field, field_schema in schema["properties"].items()
    )
    return f"\nexport interface {name} {{\n{fields}}}\n"


def _type(schema: Json) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(map(_type, several)))
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(map(_type, schema['prefixItems']))}]"
        case "array":
            return f"({_type(schema['items'])})[]"
        case "object":
            values = schema.get("additionalProperties")
            return f"Record<string, {_type(values)}>" if isinstance(values, dict) and values else "Record<string, any>"
        case plain:
            return _PLAIN.get(plain or "", "any")
