"""The fields of a user's own task, which belong to the environment: described for the OpenAPI file, and checked."""

from collections.abc import Iterator, Mapping

from learnloop_service.app.domain.unknown_name import similar
from learnloop_service.environment import registry
from learnloop_service.environment.json_type import Json

_TAKEN = ("type", "items", "format", "minLength", "maxLength", "enum", "default")
"""What a field's schema is in the OpenAPI file, beside its description."""
_EXAMPLE_MODEL = "learnloop/tiny"


def task_fields() -> frozenset[str]:
    """Return the fields of the tasks of all environments."""
    return frozenset(name for _, schema in _schemas() for name in schema["properties"])


def wrong_field(environment: str, task: Mapping[str, Json], others: list[str]) -> tuple[str, str] | None:
    """Return a field that a task of the environment does not have, or whose text does not fit, with what is wrong.

    `others` are the fields of the request beside the task.
    """
    if (schema := registry.task_schema(environment)) is None:
        return None
    fields: dict[str, dict[str, Json]] = schema["properties"]
    for name, value in task.items():
        if (about := fields.get(name)) is None:
            closest = similar(name, [*others, *fields])
            hint = f" Did you mean {closest}?" if closest else ""
            return name, f"Unknown field.{hint} A task of the environment {environment} has: {', '.join(fields)}."
        if about.get("type") == "string":
            if not isinstance(value, str):
                return name, f"{about.get('title', name)} must be a text."
            most = about.get("maxLength")
            if isinstance(most, int) and len(value) > most:
                return name, f"{about.get('title', name)} can have {most:,} characters, not {len(value):,}."
    return None


def describe_tasks(request: dict[str, Json]) -> None:
    """Add the fields of the tasks of all environments to the JSON schema of a request, and an example of each task."""
    own_fields = set(request["properties"])
    request["examples"] = []
    for environment, schema in _schemas():
        # A field of a task with the name of one of the request's can only be a part of `input`.
        fields = {name: about for name, about in schema["properties"].items() if name not in own_fields}
        for name, about in fields.items():
            description = f"{environment}: {about.get('description') or about.get('title', name)}"
            if name in request["properties"]:
                request["properties"][name]["description"] += f"; {description}"
            else:
                annotations = {"title": about.get("title", name), "description": description}
                request["properties"][name] = {"anyOf": [*_kinds(about), {"type": "null"}], **annotations}
        task = {name: about["examples"][0] for name, about in fields.items() if about.get("examples")}
        if task:
            request["examples"].append({"model": _EXAMPLE_MODEL, "environment": {"name": environment}, **task})


def _kinds(about: Mapping[str, Json]) -> list[dict[str, Json]]:
    """Return the schema of a field, one for each type that it can have."""
    schema = {key: about[key] for key in _TAKEN if key in about}
    several = schema.get("type")
    if not isinstance(several, list):
        return [schema]
    return [{"type": kind} | ({"items": schema["items"]} if kind == "array" else {}) for kind in several]


def _schemas() -> Iterator[tuple[str, dict[str, Json]]]:
    for name in registry.names():
        if (schema := registry.task_schema(name)) is not None:
            yield name, schema
