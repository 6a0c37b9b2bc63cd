"""Checks of a tool call against an episode's tools."""

from collections.abc import Callable, Mapping, Sequence

from learnloop_service.environment.base import Json, Tool, ToolError

ABSENT = (None, "")
"""Values that policies give for an argument they do not want to set."""
_TYPE_CHECKS: Mapping[str, tuple[str, Callable[[Json], bool]]] = {
    "string": ("a string", lambda value: isinstance(value, str)),
    "array": ("a list of strings", lambda value: isinstance(value, list) and all(isinstance(x, str) for x in value)),
}


def check_call(tools: Sequence[Tool], name: str, arguments: Mapping[str, Json]) -> None:
    """Raise ToolError for an unknown tool, an unknown argument, or a value that does not have the schema's type.

    Arguments can have the types string and array (of strings).
    """
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise ToolError(f"there is no tool {name!r}; there are: {', '.join(tool.name for tool in tools)}")
    properties = tool.parameters["properties"]
    if unknown := sorted(set(arguments) - set(properties)):
        raise ToolError(f"{name} has no argument {', '.join(unknown)}; it has: {', '.join(properties)}")
    for argument, schema in properties.items():
        value = arguments.get(argument)
        if argument not in tool.parameters["required"] and value in ABSENT:
            continue
        what, fits = _TYPE_CHECKS[schema["type"]]
        if not fits(value):
            raise ToolError(f"{argument} must be {what}, not {value!r}")
