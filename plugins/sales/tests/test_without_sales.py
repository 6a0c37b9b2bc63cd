"""Where this plug-in is not installed, what it brings is refused with a line that says so."""

from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import httpx
import pytest

from learnloop_service.environment import plugins
from learnloop_service.judges.markets import UnknownMarket, market
from tests.fakes.sales_agent import GRAPH

MISSING = "It comes with learnloop-sales, which is not installed here (docs/install.md#plug-ins)."


@pytest.fixture(autouse=True)
def without_sales(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: Callable[[str], Mapping[str, EntryPoint]] = plugins.registered

    def others(group: str) -> dict[str, EntryPoint]:
        return {
            name: point for name, point in registered(group).items() if not point.value.startswith("learnloop_sales")
        }

    monkeypatch.setattr(plugins, "registered", others)


@pytest.mark.parametrize(
    ("body", "loc", "what"),
    [
        ({"graph": GRAPH, "iterations": 3, "depth": 5}, ["graph"], "takes a graph."),
        ({"environment": {"name": "sales_email"}}, ["environment", "name"], "Unknown environment 'sales_email'."),
        ({"judge": {"name": "grounding"}}, ["judge", "name"], "Unknown judge 'grounding'."),
    ],
)
async def test_a_request_is_refused(client: httpx.AsyncClient, body: dict[str, Any], loc: list[str], what: str) -> None:
    response = await client.post("/learn-loop", json=body)
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    assert error["loc"] == ["body", *loc]
    assert error["msg"].endswith(f"{what} {MISSING}")


async def test_a_graph_is_not_stored_and_none_is_offered(client: httpx.AsyncClient) -> None:
    response = await client.post("/graphs", json={"graph": GRAPH})
    assert (response.status_code, MISSING in response.text) == (422, True)
    environments = (await client.get("/environments")).json()["items"]
    assert [environment["documents"] for environment in environments] == [[]] * len(environments)


async def test_the_fields_of_its_tasks_are_unknown(client: httpx.AsyncClient) -> None:
    response = await client.post("/ask", json={"model": "learnloop/tiny", "prospect": "Pira", "question": "Why?"})
    assert [error["loc"] for error in response.json()["errors"]] == [["body", "prospect"]]


def test_there_is_no_market() -> None:
    with pytest.raises(UnknownMarket, match="learnloop-sales"):
        market(3)
