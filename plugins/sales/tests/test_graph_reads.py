"""Graphs as a dashboard reads them: the list of stored ones, and the invented one that a run scores."""

from pathlib import Path

from sqlalchemy import update

from learnloop_sales.graph import parse_graph
from learnloop_sales.synthetic import world_of
from learnloop_service.app.db.tables import Reflection
from tests.integration.app.emails import email, make_run, make_trajectory
from tests.integration.app.keyed import keyed


async def test_stored_graphs_are_listed_for_those_who_may_use_them(data_dir: Path, database_url: str) -> None:
    graph = [
        {"id": "a", "content": "Customer Job: close the books", "edge": [{"target_id": "b"}]},
        {"id": "b", "content": "Product Feature: matches statements", "edge": []},
    ]
    async with keyed(data_dir, database_url) as service:
        owner, other = await service.headers("mail"), await service.headers("sales")
        stored = (await service.client.post("/graphs", json={"graph": graph}, headers=owner)).json()
        listed = (await service.client.get("/graphs", headers=owner)).json()["items"]
        assert [stored_graph["sha256"] for stored_graph in listed] == [stored["sha256"]]
        assert (await service.client.get("/graphs", headers=other)).json()["items"] == []


async def test_a_run_on_invented_graphs_shows_the_one_that_it_scores(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as service:
        run_id = await make_run(service.database, project="mail")
        reader = await service.headers("mail")
        assert (await service.client.get(f"/runs/{run_id}/graph", headers=reader)).status_code == 404
        await make_trajectory(service.database, run_id, email(), shown_after=0)
        async with service.database.begin() as tx:
            await tx.execute(update(Reflection).values(state={"graph": "train.0.0", "node_scores": {}}))
        document = (await service.client.get(f"/runs/{run_id}/graph", headers=reader)).json()["graph"]
        assert parse_graph(document) == world_of("train.0.0").graph
