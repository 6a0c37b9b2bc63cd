"""The service's metrics, as Prometheus reads them."""

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

Figures = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(client: httpx.AsyncClient, headers: Mapping[str, str] | None = None) -> Figures:
    """All samples of a scrape by name and labels."""
    response = await client.get("/metrics", headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {_key(each): each.value for family in families for each in family.samples}


def _key(sample: Sample) -> tuple[str, frozenset[tuple[str, str]]]:
    return sample.name, frozenset(sample.labels.items())


def value(figures: Figures, name: str, **labels: str) -> float:
    return figures.get((name, frozenset(labels.items())), 0.0)


async def figure(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    return value(await scrape(client), name, **labels)
