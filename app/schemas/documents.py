"""Bodies of the requests and responses about stored graphs and scenarios."""

from app.schemas.base import Json, Name, RequestBody, ResponseModel
from app.schemas.run_request import GraphSource


class GraphRequest(RequestBody):
    """A knowledge graph to store."""

    graph: list[Json]
    """The nodes, in the form that `POST /learn-loop` takes."""


class ScenariosRequest(RequestBody):
    """Scenarios to store. The environment checks them, on the graph if one is given."""

    environment: Name
    scenarios: list[Json]
    graph: GraphSource = None
    """Nodes, or `{"sha256"}` of a stored graph."""


class GraphStored(ResponseModel):
    """A stored graph. Pass its `sha256` as `{"sha256": ...}` in the field `graph` of a learn-loop."""

    sha256: str
    nodes: int
    edges: int
    """As given: an edge that was given twice counts twice."""
    links: dict[str, str]


class ScenariosStored(ResponseModel):
    """Stored scenarios. Pass their `sha256` as `{"sha256": ...}` in `environment.config.scenarios`."""

    sha256: str
    count: int
    links: dict[str, str]
