"""Which key started what: in the API's replies and lists, and in the terminal, which also sets budgets."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ulid import ULID

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.tables import Candidate, EvaluationJob, Improvement, Schedule
from learnloop_service.app.improvements.jobs import caller_of
from learnloop_service.app.schedules.scheduler import _caller as caller_of_schedule
from tests.integration.app.keyed import OPERATOR_KEY, bearer, keyed
from tests.integration.app.served import start
from tests.integration.cli.conftest import Learnloop, learnloop

__all__ = ["learnloop"]

RUN = {"iterations": 1, "evaluation": {"scenarios": 1, "test_scenarios": 1}}


def test_children_say_whose_order_they_carry_out() -> None:
    by = {"id": "01KEY", "name": "agent"}
    improvement = Improvement(id="I", project="mail", started_by=by)
    schedule = Schedule(id="S", project="mail", started_by=None)
    for caller, order, id in (
        (caller_of(improvement), "improvement:I", "01KEY"),
        (caller_of_schedule(schedule), "schedule:S", None),
    ):
        assert isinstance(caller, Caller)
        assert (caller.actor, caller.project) == (order, "mail")
        assert caller.started_by == {"id": id, "name": id and "agent", "order": order}


async def test_what_a_key_started_says_so(
    learnloop: Learnloop, monkeypatch: pytest.MonkeyPatch, data_dir: Path, database_url: str
) -> None:
    async with keyed(data_dir, database_url) as it:
        url = str(it.client.base_url).rstrip("/")

        async def get(path: str, headers: Any, **query: Any) -> list[str]:
            page = (await it.client.get(path, params=query, headers=headers)).raise_for_status().json()
            return [item.get("run_id") or item.get("evaluation_id") or item["id"] for item in page["items"]]

        async def command(*arguments: str) -> str:
            ended = await asyncio.to_thread(learnloop, *arguments, "--url", url)
            assert ended.exit_code == 0, ended.stderr
            return ended.stdout

        agent, other = await it.new("mail"), await it.new("mail")
        by = {"id": agent.row.id, "name": "a test"}
        mail = bearer(agent.key)
        it.client.headers.update(mail)
        run_id = await start(it.client, RUN)
        run = (await it.client.get(f"/runs/{run_id}")).json()
        assert run["started_by"] == by
        assert agent.key not in str(run)
        child = by | {"order": "improvement:01I"}
        async with it.database.begin() as tx:
            job = {"project": "mail", "request": {"models": []}, "total": 1, "status": "cancelled"}
            evaluations = [EvaluationJob(id=str(ULID()), started_by=whose, **job) for whose in (None, by, child)]
            improvement = Improvement(
                id=str(ULID()), project="mail", status="cancelled", facts={}, actor="key", started_by=by,
                request={"environment": {"name": "email_search"}, "target": None},
            )  # fmt: skip
            tx.add_all([*evaluations, improvement])
            await tx.flush()
            tx.add(
                Candidate(
                    improvement_id=improvement.id, number=0, rung="as_it_is", state="proposed", author="", model="m"
                )
            )
        of_key = [evaluations[2].id, evaluations[1].id]
        for whom, runs, listed, improved in (
            (agent.row.id, [run_id], of_key, [improvement.id]),
            ("a test", [run_id], of_key, [improvement.id]),
            ("improvement:01I", [], of_key[:1], []),
            (other.row.id, [], [], []),
        ):
            assert await get("/runs", mail, started_by=whom) == runs
            assert await get("/evaluations", mail, started_by=whom) == listed
            assert await get("/improvements", mail, started_by=whom) == improved
            assert await get("/releases", mail, started_by=whom) == []
            assert await get("/runs", bearer((await it.new("sales")).key), started_by=whom) == []
        assert len(await get("/evaluations", mail)) == 3
        assert (await it.client.get("/runs", params={"started_by": ""})).status_code == 422
        monkeypatch.setenv("LEARNLOOP_API_KEY", agent.key)
        assert f"started by key a test ({agent.row.id})" in await command("runs", "show", run_id)
        assert run_id in await command("runs", "list", "--started-by", agent.row.id)
        assert await command("runs", "list", "--started-by", other.row.id) == "no runs\n"
        assert "through improvement:01I" in await command("evaluations", "show", of_key[0])
        assert of_key[0] in await command("evaluations", "list", "--started-by", "improvement:01I")
        assert await command("releases", "list", "--started-by", "nobody") == "no releases\n"
        assert improvement.id in await command("improve", "list", "--started-by", "a test")
        refused = await asyncio.to_thread(learnloop, "budget", "set", "project:mail", "--usd", "3", "--url", url)
        assert (refused.exit_code, "403" in refused.stderr) == (1, True)
        monkeypatch.setenv("LEARNLOOP_API_KEY", OPERATOR_KEY)
        said = await command("budget", "set", f"key:{agent.row.id}", "--usd", "3", "--tokens-at-once", "5000")
        assert said.startswith("usd: 0 of 3\ntokens: 0, no limit\nminutes: ")
        assert "tokens at once: 0 of 5,000" in await command("budget", "show", f"key:{agent.row.id}")
