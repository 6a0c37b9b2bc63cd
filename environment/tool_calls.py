"""Checks a tool call against the tools of an episode."""

from collections.abc import Callable, Mapping, Sequence

from environment.base import Json, Tool, ToolError

ABSENT = (None, "")
"""What policies give for an argument that they do not want."""
_IS: Mapping[str, tuple[str, Callable[[Json], bool]]] = {
    "string": ("a string", lambda value: isinstance(value, str)),
    "array": ("a list of strings", lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value)),
}


def check_call(tools: Sequence[Tool], name: str, arguments: Mapping[str, Json]) -> None:
    """Raises ToolError for an unknown tool, an unknown argument, or a value of another type than the schema's.

    Schemas may have arguments of the types string and array (of strings).
    """
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise ToolError(f"there is no tool {name!r}; there are: {', '.join(tool.name for tool in tools)}")
    known = tool.parameters["properties"]
    if unknown := sorted(set(arguments) - set(known)):
        raise ToolError(f"{name} has no argument {', '.join(unknown)}; it has: {', '.join(known)}")
    for argument, schema in known.items():
        value = arguments.get(argument)
        if argument not in tool.parameters["required"] and value in ABSENT:
            continue
        what, fits = _IS[schema["type"]]
        if not fits(value):
            raise ToolError(f"{argument} must be {what}, not {value!r}")
