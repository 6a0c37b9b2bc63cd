"""`learnloop feedback` against the real service."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from learnloop_sales.market import Market
from learnloop_service.app.agent_sessions.store import AgentSessions, PinnedModel, SessionSpec
from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.judges.feedback import ONLINE
from tests.fakes.scripted_learning import ScriptedLoop
from tests.integration.app.emails import email, make_run, make_trajectory
from tests.integration.app.served import served, settings_for
from tests.integration.cli.conftest import Learnloop, Ran


@dataclass(frozen=True)
class Shown:
    """A run that showed three emails, one of them unwritten, in the service at `url`."""

    run_id: str
    written: list[str]
    url: str
    database: Database
    learnloop: Learnloop

    async def feedback(self, command: str, *more: str, run_id: str | None = None) -> Ran:
        """Run `learnloop feedback COMMAND RUN_ID`, while the service answers."""
        arguments = ("feedback", command, run_id or self.run_id, "--url", self.url, *more)
        return await asyncio.to_thread(self.learnloop, *arguments)


@pytest.fixture
async def shown(data_dir: Path, database_url: str, learnloop: Learnloop) -> AsyncIterator[Shown]:
    engine = make_engine(parse_url(database_url))
    async with served(settings_for(data_dir, database_url), ScriptedLoop()) as client:
        database = make_database(engine)
        run_id = await make_run(database)
        await make_trajectory(database, run_id, {"email": None}, shown_after=0)
        await make_trajectory(database, run_id, email())  # asked for, not shown
        written = [
            await make_trajectory(database, run_id, email(cited), shown_after=k) for k, cited in ((1, "ab"), (2, "bc"))
        ]
        yield Shown(run_id, written, str(client.base_url), database, learnloop)
    await engine.dispose()


def _fates(seed: int) -> list[list[str]]:
    task: dict[str, Any] = {"prospect": "Tolu Marend", "company": "Velmor", "goal": "book a call"}
    return [Market(seed).events(task, email(cited)) for cited in ("ab", "bc")]


async def test_the_market_simulator_answers_the_emails_that_were_shown(shown: Shown) -> None:
    first = (await shown.feedback("simulate", "--seed", "4", "--json")).json
    assert first["source"] == "market simulator"
    assert [email_row["trajectory_id"] for email_row in first["emails"]] == shown.written
    assert [email_row["outcome"] for email_row in first["emails"]] == [fate[-1] for fate in _fates(4)]
    assert (first["accepted"], first["rejected"]) == (sum(map(len, _fates(4))), [])
    events = (await shown.feedback("list", "--json")).json
    assert {event["source"] for event in events} == {"simulator"}
    for id, fate in zip(shown.written, _fates(4), strict=True):
        assert {event["type"] for event in events if event["trajectory_id"] == id} == set(fate)


async def test_to_simulate_twice_adds_nothing(shown: Shown) -> None:
    accepted_count = (await shown.feedback("simulate", "--json")).json["accepted"]
    again = (await shown.feedback("simulate", "--json")).json
    assert (again["accepted"], again["duplicates"]) == (0, accepted_count)


async def test_invented_figures_are_titled_so_in_80_columns(shown: Shown) -> None:
    simulated = (await shown.feedback("simulate", "--seed", "4")).stdout
    assert simulated.splitlines()[0].rstrip() == "market simulator, seed 4: invented outcomes"
    for fate in _fates(4):
        assert re.search(rf"Rellik for Velmor +{fate[-1]} +{ONLINE[fate[-1]]:.1f}", simulated)
    listed = (await shown.feedback("list")).stdout
    assert listed.count("market simulator") == len(listed.splitlines()) - 1 == sum(map(len, _fates(4)))
    assert max(map(len, (simulated + listed).splitlines())) <= 80


async def test_a_run_that_showed_no_email(shown: Shown) -> None:
    empty = await make_run(shown.database)
    ran = await shown.feedback("simulate", run_id=empty)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert f"run {empty} has no sample email" in ran.stderr
    assert (await shown.feedback("list", run_id=empty)).stdout == "no feedback\n"
    assert "There is no run 'nope'." in (await shown.feedback("simulate", run_id="nope")).stderr


async def test_feedback_on_a_session(shown: Shown) -> None:
    production = PinnedModel("mail/agent", "mail/agent@3", 3, "embedded", None)
    opened = await AgentSessions(shown.database).open(SessionSpec("learnloop", production, timedelta(hours=1)))
    on = ("--session", opened.row.id, "--url", shown.url)

    async def ran(*arguments: str) -> Ran:
        return await asyncio.to_thread(shown.learnloop, "feedback", *arguments)

    assert (await ran("list", *on)).stdout == "no feedback\n"
    send_arguments = ("send", "thumbs_down", *on, "--comment", "The wrong [bold]invoice.", "--event-id", "ticket-7")
    assert [(await ran(*send_arguments)).stdout for _ in range(2)] == ["stored\n", "already known\n"]
    assert re.search(r"thumbs_down +1\.00 +- +The wrong \[bold\]invoice\.", (await ran("list", *on)).stdout)
    assert "give either RUN_ID or --session" in (await ran("list", shown.run_id, *on)).stderr
    assert "comment is only allowed for" in (await ran("send", "sent", *on, "--comment", "Why?")).stderr
