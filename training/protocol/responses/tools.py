"""The tools of a Responses request: which of them the model is offered, and under which names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.responses.parameters import BadParameter

HOSTED = frozenset(
    {
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "mcp",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Types of the tools that OpenAI runs itself. They do not exist here, so the model is not offered them."""


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that the model is offered."""

    functions: Sequence[dict[str, Json]]
    """In the format of chat completions."""
    names: Mapping[str, tuple[str, str]]
    """Namespace and name of each function in a namespace, by the name that the model is offered."""
    left_out: Sequence[str]
    """Types of the hosted tools that the model is not offered, in the request's order."""


def offered_tools(tools: Sequence[Mapping[str, Json]]) -> OfferedTools:
    """Return what the model is offered. Raises BadParameter for a tool that is neither a function, nor a namespace of
    functions, nor hosted."""
    functions: list[dict[str, Json]] = []
    names: dict[str, tuple[str, str]] = {}
    left_out: list[str] = []
    for where, namespace, tool in _flat(tools):
        kind = tool.get("type")
        if kind in HOSTED:
            left_out.append(kind)
        elif kind == "function":
            functions.append(_chat_tool(tool, namespace, names))
        else:
            raise BadParameter(
                f"tools: {where} is of type {kind!r}; only functions, namespaces of functions and hosted tools, which "
                "are not offered to the model, are accepted",
                param="tools",
            )
    return OfferedTools(functions, names, left_out)


def offered_name(name: str, namespace: Json) -> str:
    """Return the name under which the model is offered a function. Chat completions have no namespaces."""
    return f"{namespace.rstrip('_')}__{name}" if isinstance(namespace, str) and namespace else name


def _flat(tools: Sequence[Mapping[str, Json]]) -> Iterator[tuple[str, Json, Mapping[str, Json]]]:
    """Yield each tool after its position in the request, in words, and the name of its namespace, if it is in one."""
    for number, tool in enumerate(tools):
        if tool.get("type") != "namespace":
            yield f"tool {number}", None, tool
            continue
        inner, namespace = tool.get("tools"), tool.get("name")
        if not isinstance(namespace, str) or not isinstance(inner, list):
            raise BadParameter(f"tools: namespace {number} needs a name and a list of tools", param="tools")
        for index, member in enumerate(inner):
            yield f"tool {number}.{index}", namespace, member if isinstance(member, dict) else {}


def _chat_tool(tool: Mapping[str, Json], namespace: Json, names: dict[str, tuple[str, str]]) -> dict[str, Json]:
    """Return a function in the format of chat completions, where its fields are nested one level deeper."""
    function = {key: tool.get(key) for key in ("name", "description", "parameters", "strict")}
    if namespace is not None and isinstance(name := tool.get("name"), str):
        function["name"] = offered = offered_name(name, namespace)
        names[offered] = namespace, name
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
