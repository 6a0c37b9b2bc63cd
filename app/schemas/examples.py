"""Examples of requests that depend on the installed environments."""

from collections.abc import Callable

from learnloop_service.environment.json_type import Json
from learnloop_service.environment.registry import documents


def examples_with_graph(*others: Json, **rest: Json) -> Callable[[dict[str, Json]], None]:
    """Return what adds the examples to a JSON schema: `others`, and the fields `rest` beside a graph, if there is an
    environment whose graphs have an example."""

    def add(schema: dict[str, Json]) -> None:
        graph_type = documents().get("graph")
        with_graph = [{"graph": list(graph_type[1].example), **rest}] if graph_type and graph_type[1].example else []
        schema["examples"] = [*others, *with_graph]

    return add
