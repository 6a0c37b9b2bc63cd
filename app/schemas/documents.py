"""Bodies of the requests and responses about stored graphs and scenarios."""

from pydantic import ConfigDict

from app.schemas.base import Json, Name, RequestBody, ResponseModel
from app.schemas.run_request import GraphSource


class GraphRequest(RequestBody):
    """A knowledge graph to store."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "graph": [
                        {
                            "id": "customer-job-close",
                            "content": "Customer Job: The finance team closes the books in 9 days.",
                            "edge": [{"target_id": "product-feature-match", "relationship": "solved by"}],
                        },
                        {
                            "id": "product-feature-match",
                            "content": "Product Feature: AutoMatch matches 95 percent of bank statements.",
                            "edge": [],
                        },
                    ]
                }
            ]
        }
    )

    graph: list[Json]
    """The nodes: each an object with `id`, `content` and `edge`, a list of `{"target_id", "relationship"}`. There must
    be a Customer Job from which a Product Feature can be reached."""


class ScenariosRequest(RequestBody):
    """Scenarios to store. The environment checks them, on the graph if one is given."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "environment": "sales_email",
                    "scenarios": [
                        {"prospect": "Ada Byrne", "company": "Kestrel Foods", "role": "Head of Finance"},
                        {"prospect": "Ben Okafor", "company": "Northgate", "goal": "book a call"},
                        {"prospect": "Cleo Marsh", "company": "Ostrava Mills"},
                    ],
                    "graph": [
                        {
                            "id": "customer-job-close",
                            "content": "Customer Job: The finance team closes the books in 9 days.",
                            "edge": [{"target_id": "product-feature-match", "relationship": "solved by"}],
                        },
                        {
                            "id": "product-feature-match",
                            "content": "Product Feature: AutoMatch matches 95 percent of bank statements.",
                            "edge": [],
                        },
                    ],
                }
            ]
        }
    )

    environment: Name
    """Name of the environment that the scenarios are for, one of `GET /environments`."""
    scenarios: list[Json]
    """The scenarios, each in the form that the environment takes. For `sales_email`: `prospect` and `company`, and
    optionally `role`, `goal`, `start` and `split`."""
    graph: GraphSource = None
    """Nodes of a graph to check the scenarios on, or `{"sha256"}` of a stored one; it is not stored. Default: none."""


class GraphStored(ResponseModel):
    """A stored graph. Pass its `sha256` as `{"sha256": ...}` in the field `graph` of a learn-loop."""

    sha256: str
    """Hash of the graph: SHA-256 of its canonical JSON, in hexadecimal."""
    nodes: int
    """Number of nodes."""
    edges: int
    """Number of edges as given: an edge that was given twice counts twice."""
    links: dict[str, str]
    """Path of the stored graph, as `self`."""


class ScenariosStored(ResponseModel):
    """Stored scenarios. Pass their `sha256` as `{"sha256": ...}` in `environment.config.scenarios`."""

    sha256: str
    """Hash of the scenarios: SHA-256 of their canonical JSON, in hexadecimal."""
    count: int
    """Number of scenarios."""
    links: dict[str, str]
    """Path of the stored scenarios, as `self`."""
