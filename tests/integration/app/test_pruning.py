"""What the settings do not keep is deleted once it is old enough; figures, totals and what is in use stay."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import func, insert, select, text, update
from ulid import ULID

from learnloop_service.app.agent_sessions.store import AgentSessions, PinnedModel, SessionSpec
from learnloop_service.app.auth.caller import LOCAL
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Release, ReleaseUnit, Trajectory
from learnloop_service.app.domain.release_state import Arm, ReleaseState
from learnloop_service.app.feedback.store import take
from learnloop_service.app.operations.prune import prune
from learnloop_service.app.schemas.feedback import FeedbackEvent
from learnloop_service.app.security.user_hash import UserHasher
from learnloop_service.training.rollout.agents.sessions import SessionOutcome
from tests.integration.app.emails import make_trajectory
from tests.integration.app.ended_runs import EndedRuns
from tests.integration.app.release_stage import running_release
from tests.integration.app.sales_runs import SALES, completed, sales_service
from tests.integration.app.served import settings_for
from tests.integration.app.user_data import everything
from tests.opened_database import opened_database

_DAY = 86_400
_ALL = {f"keep_{kind}_days": 7 for kind in ("trajectories", "events", "ledger", "deliveries", "verdicts")}


async def _aged(database: Database, days: float) -> None:
    """Makes everything look as if it had happened so many days earlier."""
    columns = {
        "run": "finished_at",
        "trajectory": "started_at",
        "agent_session": "opened_at",
        "webhook_delivery": "created_at",
        "verdict": "created_at",
    }
    async with database.begin() as tx:
        for table, column in columns.items():
            earlier = f"{column} - make_interval(secs => :seconds)"
            await tx.execute(text(f"UPDATE {table} SET {column} = {earlier}"), {"seconds": days * _DAY})


async def _count(database: Database, table: str, which: str = "true") -> int:
    async with database() as tx:
        return int((await tx.execute(text(f"SELECT count(*) FROM {table} WHERE {which}"))).scalar_one())


async def _get(client: httpx.AsyncClient, path: str) -> Any:
    return (await client.get(path)).raise_for_status().json()


async def test_only_details_of_old_ended_runs_are_deleted(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended, opened_database(ended.database_url) as database:
        client, run, database_url = ended.client, ended.run, ended.database_url
        path = f"/runs/{run['run_id']}"
        iterations = await _get(client, f"{path}/iterations")
        [liked, *_] = (await _get(client, f"{path}/trajectories?kind=train&limit=5"))["items"]
        event = {"event_id": str(ULID()), "type": "thumbs_up", "trajectory_id": liked["id"]}
        assert (await client.post("/feedback", json=event)).status_code == 200
        ledger = await _get(client, f"{path}/ledger")

        await prune(database, settings_for(data_dir, database_url, **_ALL))
        assert (await _get(client, path))["pruned"] == {}  # it is not old
        await _aged(database, 8)
        await prune(database, settings_for(data_dir, database_url))
        assert await _count(database, "trajectory") > 40  # nothing is deleted unless somebody wants it
        await prune(database, settings_for(data_dir, database_url, **_ALL))

        pruned = await _get(client, path)
        assert pruned["pruned"].keys() == {"trajectories", "rollouts", "events", "ledger"}
        for figure in ("iterations", "evaluations", "summary", "cost", "status"):
            assert pruned[figure] == run[figure], figure
        rollout_ids = [rollout["id"] for rollout in (await _get(client, f"{path}/trajectories?limit=200"))["items"]]
        assert len(rollout_ids) == 3 + 1  # each iteration's showcase, and the one with feedback
        assert liked["id"] in rollout_ids
        assert await _get(client, f"{path}/iterations") == iterations
        assert (await _get(client, f"{path}/events"))["items"] == []
        summed = await _get(client, f"{path}/ledger")
        assert summed["totals"] == pytest.approx(ledger["totals"])
        assert len(summed["items"]) < len(ledger["items"])
        assert {(row["phase"], row["wasted"]) for row in summed["items"]} == {
            (row["phase"], row["wasted"]) for row in ledger["items"]
        }
        refused = await client.get(f"{path}/verify")
        assert (refused.status_code, "because of their age" in refused.json()["detail"]) == (409, True)
        await prune(database, settings_for(data_dir, database_url, **_ALL))
        assert (await _get(client, path))["pruned"] == pruned["pruned"]  # once


async def test_a_run_that_is_not_over_keeps_everything(ended_runs: EndedRuns, data_dir: Path) -> None:
    async with ended_runs.copy(data_dir, **SALES) as ended, opened_database(ended.database_url) as database:
        client, run, database_url = ended.client, ended.run, ended.database_url
        await _aged(database, 8)
        async with database.begin() as tx:
            await tx.execute(text("UPDATE run SET status = 'paused'"))
        before = await _count(database, "trajectory"), await _count(database, "event")
        await prune(database, settings_for(data_dir, database_url, **_ALL))
        assert (await _count(database, "trajectory"), await _count(database, "event")) == before
        assert (await _get(client, f"/runs/{run['run_id']}/verify"))["ok"] is True


async def test_deliveries_and_verdicts_go_by_their_own_age(data_dir: Path, database_url: str) -> None:
    async with sales_service(data_dir, database_url) as client, opened_database(database_url) as database:
        hook = {"url": "https://93.184.216.34/hook"}
        await completed(client, **SALES, webhooks=[hook])
        async with database.begin() as tx:
            await tx.execute(
                text("UPDATE webhook_delivery SET state = 'delivered' WHERE event_seq % 2 = 0 AND state = 'pending'")
            )
            await tx.execute(text("UPDATE webhook_delivery SET state = 'pending' WHERE event_seq % 2 = 1"))
            await tx.execute(
                text("INSERT INTO verdict (key, value) SELECT 'v' || n, '{}' FROM generate_series(1, 2500) AS n")
            )
        await _aged(database, 8)
        async with database.begin() as tx:
            await tx.execute(text("UPDATE verdict SET created_at = now() WHERE key = 'v7'"))
        waiting = await _count(database, "webhook_delivery", "state = 'pending'")
        assert 0 < waiting < await _count(database, "webhook_delivery")
        await prune(database, settings_for(data_dir, database_url, keep_deliveries_days=7, keep_verdicts_days=7))
        assert await _count(database, "webhook_delivery") == waiting
        assert await _count(database, "verdict") == 1  # in batches of 1,000
        assert await _count(database, "trajectory") > 40


async def _say(database: Database, *events: FeedbackEvent) -> None:
    await take(database, events, "api", lambda _: True, UserHasher(b"key"))


async def test_a_session_of_production_with_feedback_stays(database_url: str, data_dir: Path) -> None:
    production = SessionSpec("mail", PinnedModel("a", "mail/a@1", 1, "embedded", None), timedelta(hours=1))
    async with opened_database(database_url) as database:
        store = AgentSessions(database)
        rated, unrated, taken_back, still_open = [(await store.open(production)).row.id for _ in range(4)]
        for id in (rated, unrated, taken_back):
            await store.end(LOCAL, id, SessionOutcome(reward=1.0))
        await _say(database, FeedbackEvent(event_id="a", type="thumbs_up", session_id=rated))
        await _say(
            database,
            FeedbackEvent(event_id="b", type="thumbs_up", session_id=taken_back),
            FeedbackEvent(event_id="c", type="withdrawn", withdraws="b", session_id=taken_back),
        )
        await _aged(database, 8)
        await prune(database, settings_for(data_dir, database_url, **_ALL))
        async with database() as tx:
            session_ids = {id for (id,) in await tx.execute(text("SELECT id FROM agent_session"))}
        assert session_ids == {rated, still_open}


async def test_scenarios_of_users_are_kept_as_long_as_what_they_asked(data_dir: Path, database_url: str) -> None:
    async with opened_database(database_url) as database:
        await everything(database, "ann")
        settings = settings_for(data_dir, database_url, **_ALL)
        await prune(database, settings)
        assert await _count(database, "user_scenario") == 1
        async with database.begin() as tx:
            await tx.execute(text("UPDATE document SET created_at = now() - interval '8 days'"))
            await tx.execute(text("UPDATE run SET status = 'paused' WHERE id = 'nightly'"))
        await prune(database, settings)
        assert await _count(database, "document") == 1  # the run still needs it
        async with database.begin() as tx:
            await tx.execute(text("UPDATE run SET status = 'cancelled'"))
        await prune(database, settings_for(data_dir, database_url))
        assert await _count(database, "document") == 1  # nothing is deleted unless somebody wants it
        await prune(database, settings)
        assert await _count(database, "user_scenario") == 1  # it leads from the user to the rollouts
        async with database.begin() as tx:
            await tx.execute(text("DELETE FROM trajectory WHERE run_id = 'nightly'"))
        await prune(database, settings)
        assert (await _count(database, "document"), await _count(database, "user_scenario")) == (0, 0)


async def test_what_the_open_window_of_a_live_release_needs_stays(database_url: str, data_dir: Path) -> None:
    production = SessionSpec("mail", PinnedModel("a", "mail/a@1", 1, "embedded", None), timedelta(hours=1))
    async with opened_database(database_url) as database:
        store = AgentSessions(database)
        live, ended = await running_release(database, "live"), await running_release(database, "ended")
        needed = set[str]()
        for release_id, unit, is_open in ((live, "a", True), (live, "b", False), (ended, "c", True)):
            trajectory_id, session = await make_trajectory(database, None, {}), (await store.open(production)).row.id
            by_session = (await store.open(production)).row.id
            await store.end(LOCAL, session, SessionOutcome(reward=1.0))
            await store.end(LOCAL, by_session, SessionOutcome(reward=1.0))
            async with database.begin() as tx:
                exposure = {"release_id": release_id, "user_hash": unit}
                await tx.execute(update(Trajectory).where(Trajectory.id == trajectory_id).values(exposure))
                await tx.execute(update(AgentSession).where(AgentSession.id == session).values(exposure))
                await tx.execute(
                    update(AgentSession).where(AgentSession.id == by_session).values(release_id=release_id)
                )
                row = {"release_id": release_id, "arm": Arm.STABLE, "probability": 0.5, "stage": 0}
                counted = {} if is_open else {"closed_at": func.now(), "look": 1}
                for unit_id in (unit, by_session):
                    await tx.execute(insert(ReleaseUnit).values(row | {"unit": unit_id, **counted}))
            needed |= {trajectory_id, session, by_session} if unit == "a" else set()
        async with database.begin() as tx:
            await tx.execute(update(Release).where(Release.id == ended).values(state=ReleaseState.ROLLED_BACK))
        await _aged(database, 8)
        await prune(database, settings_for(data_dir, database_url, **_ALL))
        async with database() as tx:
            remaining = {*(await tx.execute(select(Trajectory.id))).scalars()}
            remaining |= {*(await tx.execute(select(AgentSession.id))).scalars()}
        assert remaining == needed
