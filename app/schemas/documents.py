"""Bodies of the requests and responses about stored graphs and scenarios."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, WithJsonSchema

from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.schemas.base import Name, RequestBody, ResponseModel
from learnloop_service.app.schemas.examples import examples_with_graph
from learnloop_service.app.schemas.run_request import GraphSource
from learnloop_service.environment.json_type import Json

DatasetName = Annotated[str, Field(pattern=DATASET_PATTERN)]
InboxSource = Annotated[
    Json,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "maxLength": 80, "description": "`NAME` or `NAME@VERSION`."},
                {
                    "type": "object",
                    "properties": {"sha256": {"type": "string", "description": "Hash of an inbox."}},
                    "required": ["sha256"],
                },
                {"type": "null"},
            ]
        }
    ),
]
"""An inbox as a request names it. The environment validates it."""


class GraphRequest(RequestBody):
    """A graph to store."""

    model_config = ConfigDict(json_schema_extra=examples_with_graph())

    graph: list[Json]
    """The nodes, in the form that the environment with the document `graph` takes (`GET /environments`)."""


class GraphListed(ResponseModel):
    """A stored graph."""

    sha256: str
    """Hash of the graph, for `{"graph": {"sha256": ...}}` in a learn-loop."""
    bytes: int
    """Size as stored, which is compressed."""
    created_at: datetime
    """When it was stored."""
    links: dict[str, str]
    """Path of the graph."""


class GraphsOut(ResponseModel):
    """Stored graphs. The list has a single page."""

    items: list[GraphListed]
    """The graphs, newest first."""
    next_cursor: None = Field(default=None, description="Always null: the list has a single page.")


class ScenariosRequest(RequestBody):
    """Scenarios to store. The environment checks them, on the graph if one is given."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "environment": "answers",
                    "scenarios": [
                        {"question": "How long can I return shoes?", "answer": "30 days"},
                        {"question": "What does delivery cost?", "answer": "4.90 euros"},
                        {"question": "Do you deliver to islands?", "answer": "no"},
                    ],
                }
            ]
        }
    )

    environment: Name
    """Name of the environment that the scenarios are for, one of `GET /environments`."""
    scenarios: list[Json]
    """The scenarios, each in the form that the environment takes. For `email_search`: `question`, `answer` and
    `source_ids`, the ids or Message-IDs of the emails that the answer rests on, and optionally `id`, `split`,
    `inbox_address` and `query_date`."""
    name: DatasetName | None = None
    """Name under which learn-loops find them, in versions, as `NAME` or `NAME@VERSION`. Default: only their hash."""
    inbox: InboxSource = None
    """The inbox that questions of `email_search` are about, as `NAME`, `NAME@VERSION` or `{"sha256"}`."""
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
    name: str | None = None
    """Their name; null if they were stored without one."""
    version: int | None = None
    """Their version under this name, from 1."""
    links: dict[str, str]
    """Path of the stored scenarios, as `self`."""
