"""Examples that several request schemas share."""

from learnloop_service.environment.json_type import Json

GRAPH: list[Json] = [
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
"""A knowledge graph with one path."""
