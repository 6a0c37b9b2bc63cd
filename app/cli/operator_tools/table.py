"""The tools that operators have over MCP: operations of the HTTP API, as tools.txt lists them.

A line has the tool's name, what a call does (it reads, starts work, or ends or replaces something), the operation, its
arguments, and what replaces the operation's summary. An argument is a parameter of the operation or a field of its
body, as the OpenAPI document describes it, unless its type or values follow it; `!` marks those that must be there. No
tool has keys, settings or deletion.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from mcp.types import Tool, ToolAnnotations

from learnloop_service.environment.json_type import Json

_LONGEST = 110
"""Characters of an argument's description: all of them are in a model's context from the first request on."""
ATTEMPT = "attempt"
_ATTEMPT: Json = {"type": "integer", "description": "Repeated, the same call starts nothing, unless this differs"}


@dataclass(frozen=True)
class OperatorTool:
    """One tool: how clients see it, its operation, and the schema of the operation's body (None: it has none)."""

    described: Tool
    does: str
    method: str
    path: str
    body: Json


class OperatorTools(dict[str, OperatorTool]):
    """The tools by name, from an OpenAPI document."""

    def __init__(self, api: Json) -> None:
        self._api = api
        lines = (Path(__file__).parent / "tools.txt").read_text(encoding="utf-8").splitlines()
        super().__init__((tool.described.name, tool) for tool in map(self._tool, lines))

    def fields(self, name: str, path: str) -> dict[str, Json]:
        """Return the fields below a path in the body of a tool's request. Raises ValueError if there are none."""
        schema = self[name].body or {}
        for part in filter(None, path.split(".")):
            schema = self._resolved(schema.get("properties", {}).get(part, {}))
        if not schema.get("properties"):
            raise ValueError(f"{name} has no fields {f'below {path!r}' if path else 'besides its arguments'}.")
        return {field: self._argument(row, 3 * _LONGEST) for field, row in schema["properties"].items()}

    def _tool(self, line: str) -> OperatorTool:
        name, does, operation, arguments, note = (cell.strip() for cell in line.split("|"))
        method, path = operation.split()
        listed = self._api["paths"].get(path, {}).get(method.lower(), {"summary": "Not in this version"})
        content = listed.get("requestBody", {}).get("content", {}).get("application/json")
        body = self._resolved(content["schema"]) if content else None
        rows = {row["name"]: row for row in listed.get("parameters", ())} | (body or {}).get("properties", {})
        in_path = [f"{part}:string!" for part in re.findall(r"{(\w+)}", path) if f"{part}:" not in arguments]
        properties, required = dict[str, Json](), list[str]()
        for argument in [*in_path, *arguments.split()]:
            field, _, kind = argument.removesuffix("!").partition(":")
            values: Json = {"enum": kind.split(",")} if "," in kind else {"type": kind}
            properties[field] = values if kind else self._argument(rows.get(field, {}), _LONGEST)
            required += [field] * argument.endswith("!")
        properties |= {ATTEMPT: _ATTEMPT} if does == "starts" else {}
        schema: Json = {"type": "object", "properties": properties, "required": required}
        hints = ToolAnnotations(readOnlyHint=does == "reads", destructiveHint=does == "ends", idempotentHint=True)
        schema["additionalProperties"] = body is not None
        tool = Tool(name=name, description=note or f"{listed['summary']}.", inputSchema=schema, annotations=hints)
        return OperatorTool(tool, does, method, path, body)

    def _argument(self, row: Json, longest: int) -> Json:
        """Return a field's type as far as it is simple, the first sentence about it, and names of its own fields."""
        schema = self._resolved(row.get("schema", row))
        kept = {name: schema[name] for name in ("type", "enum") if name in schema}
        text = " ".join(row.get("description", "").split()).partition(". ")[0].removesuffix(".")
        text = text if len(text) <= longest else f"{text[:longest].rpartition(' ')[0]}…"
        inner = schema.get("properties") or self._resolved(schema.get("items", {})).get("properties", ())
        text += f": {', '.join([*inner][:5])}" if inner else ""
        return kept | ({"description": text} if text else {})

    def _resolved(self, schema: Json) -> Json:
        """Return what a schema refers to: the only alternative to null, or the first one with properties."""
        if "$ref" in schema:
            return self._resolved(self._api["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        choices = [self._resolved(choice) for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
        if len(choices) > 1:
            return next((choice for choice in choices if "properties" in choice), {})
        return choices[0] if choices else schema
