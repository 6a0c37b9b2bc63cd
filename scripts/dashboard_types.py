"""Writes what the dashboard knows of the API, from its OpenAPI file.

    python -m scripts.dashboard_types

`api_types.d.ts`, for the type checker: the replies that the dashboard uses and what they consist of. Every field is
there, because the service leaves none out. `api_fields.js`: the settings of a run, each with its description and
default, for the form that starts one.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.main import create_app
from app.settings import load_settings

Json = Any
FOLDER = Path(__file__).resolve().parent.parent / "app" / "dashboard" / "static"
USED = (
    "AskOut",
    "BackendCatalogue",
    "CheckpointOut",
    "DeliveryBrief",
    "DeliveryOut",
    "EndpointCreated",
    "EndpointOut",
    "EvaluationBrief",
    "app__schemas__evaluations__EvaluationOut",
    "EventOut",
    "GraphListed",
    "InboxOut",
    "IterationOut",
    "JudgeCallOut",
    "KeyCreated",
    "KeyOut",
    "LearnLoopAccepted",
    "LedgerRow",
    "ModelBrief",
    "ModelWhole",
    "NodeScores",
    "PromotionOut",
    "Readiness",
    "RunListed",
    "RunOut",
    "SampledTokens",
    "ScenarioSetOut",
    "SessionOut",
    "TestResult",
    "TrajectoryBrief",
    "TrajectoryOut",
)
_HEAD = "// Made from the OpenAPI file by `python -m scripts.dashboard_types`; do not edit.\n"
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def files() -> dict[str, str]:
    """The texts of the files, by name."""
    api = create_app(load_settings(_env_file=None, data_dir=Path("nowhere"))).openapi()
    schemas = api["components"]["schemas"]
    request = api["paths"]["/learn-loop"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields = json.dumps(dict(_fields(request, schemas)), indent=2)
    return {
        "api_types.d.ts": _HEAD + "".join(_declared(name, schemas[name]) for name in sorted(_reached(schemas))),
        "api_fields.js": f"{_HEAD}\n/** @type {{Record<string, any>}} */\nexport const FIELDS = {fields};\n",
    }


def _fields(schema: Json, schemas: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """The settings below an object that are single values, by their place, such as `evaluation.every`."""
    for name, each in schema.get("properties", {}).items():
        kind = _meant(each, schemas)
        if "properties" in kind:
            yield from _fields(kind, schemas, f"{prefix}{name}.")
        elif kind.get("type") in ("string", "integer", "number"):
            about = {"help": " ".join(each.get("description", "").split()), "type": kind["type"]}
            limits = {"standard": each.get("default"), "choices": kind.get("enum")}
            yield prefix + name, about | {key: value for key, value in limits.items() if value is not None}


def _meant(schema: Json, schemas: Json) -> Json:
    """What a schema refers to, without null."""
    if "$ref" in schema:
        return _meant(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    several = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    return _meant(several[0], schemas) if several else schema


def _reached(schemas: Json) -> set[str]:
    reached: set[str] = set()
    waiting = list(USED)
    while waiting:
        if (name := waiting.pop()) not in reached:
            reached.add(name)
            waiting.extend(_named(schemas[name]))
    return reached


def _named(schema: Json) -> Iterator[str]:
    """The schemas that one refers to."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            yield schema["$ref"].rpartition("/")[2]
        for part in schema.values():
            yield from _named(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _named(part)


def _declared(name: str, schema: Json) -> str:
    if "properties" not in schema:
        return f"\nexport type {name} = {_type(schema)};\n"
    fields = "".join(f'  "{field}": {_type(each)};\n' for field, each in schema["properties"].items())
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
        case "array":
            return f"({_type(schema['items'])})[]"
        case "object":
            values = schema.get("additionalProperties")
            return f"Record<string, {_type(values)}>" if isinstance(values, dict) and values else "Record<string, any>"
        case plain:
            return _PLAIN.get(plain or "", "any")


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
