"""Budgets of a project and of a key for a day, over a real Postgres: sixteen jobs at once, SIGKILL, midnight."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import Float, delete, insert, literal, select, update
from sqlalchemy import cast as as_type

from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.claims.claims import Claims
from learnloop_service.app.claims.day_budget import BudgetOwner, usage_of
from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import DayUse, Setting
from learnloop_service.app.domain.stored_request import StoredBudget
from learnloop_service.app.runs import day_spending
from learnloop_service.app.runs.budget import Meter, PriorUsage, RunBudgetReached
from learnloop_service.app.runs.day_spending import spending
from learnloop_service.training.budget import Usage
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.phases import Phase
from tests.conditions import answered
from tests.fakes.day_spender import MOST, billed
from tests.fakes.scripted_chat import scripted_chat
from tests.fakes.scripted_judge import scripted_judge
from tests.fakes.scripted_learning import ScriptedBackend
from tests.integration.app.keyed import OPERATOR_KEY, bearer, keyed
from tests.integration.app.leased_work import Evaluations, Runs, claimed, kind, lapse, queued, status_of
from tests.integration.app.served import run_once, served, settings_for, start
from tests.integration.app.talking_runs import PROMPT, REPLY, RUN, service, talker

__all__ = ["kind"]

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)
P = BudgetOwner("project", "p", "p")
KEY = {"id": "01KEY", "name": "agent"}
OWNER_OF_KEY = BudgetOwner("key", KEY["id"], KEY["name"])


async def limit(database: Database, owner: BudgetOwner = P, **limits: float) -> None:
    """Set the budget in place of the one before."""
    async with database.begin() as tx:
        await tx.execute(delete(Setting).where(Setting.name == owner.setting))
        await tx.execute(insert(Setting).values(name=owner.setting, value=limits))


async def usage(database: Database, owner: BudgetOwner = P, day: Any = NOON) -> Mapping[str, float]:
    async with database() as tx:
        return await usage_of(tx, owner, day.date())


@asynccontextmanager
async def driven(database: Database, lease: Lease[Any], at: datetime = NOON) -> AsyncIterator[Meter]:
    """The meter of claimed work, which is driven at that time."""
    meter = Meter(StoredBudget(), PriorUsage())
    async with database() as tx:
        row = await tx.get_one(lease.table, lease.id)
    async with spending(database, row, lease, meter, lambda: literal(at)):
        yield meter


async def call(meter: Meter, used: Usage) -> None:
    """A call that uses all that it reserves."""
    async with meter.reserve(Phase.ROLLOUT, lambda: used) as reservation:
        reservation.spend(used)


async def stopped(database: Database, lease: Lease[Any], *calls: Usage) -> RunBudgetReached:
    """What stopped work at the last of these calls."""
    made = 0
    try:
        async with driven(database, lease) as meter:
            for used in calls:
                await call(meter, used)
                made += 1
    except RunBudgetReached as reached:
        assert made == len(calls) - 1
        return reached
    raise AssertionError("nothing stopped it")


def at_noon(claims: Claims[Any], at: datetime = NOON) -> Claims[Any]:
    """The worker at that time."""
    claims.now = lambda: literal(at)
    return claims


async def give_back(claims: Claims[Any], lease: Lease[Any], reached: RunBudgetReached) -> None:
    """What a runner does with work that reached the budget of its project."""
    await claims.release(lease, str(reached.exceeded), reached.exceeded.figures())


async def test_what_is_used_up_waits_for_midnight(kind: Runs | Evaluations) -> None:
    """The clock is one that the test sets."""
    database = kind.database
    await limit(database, max_tokens=1_000)
    id, claims = await kind.queue(), at_noon(kind.worker("w"))
    lease = await claimed(claims)
    reached = await stopped(database, lease, Usage(0, 600), Usage(0, 401))
    assert reached.exceeded.figures() | {"spent": None} == {
        "limit": "max_tokens", "max": 1_000, "needs": 1_001, "spent": None, "whose": "project p",
        "budget": "budget/project/p", "until": "2026-12-01 00:00:00+00:00",
    }  # fmt: skip
    await give_back(claims, lease, reached)
    row = await kind.get(id)
    assert (row.status, row.error) == ("queued", None)
    assert row.wait_reason == (
        "The budget of project p is 1,000 tokens a day: 600 were used today, and with what is reserved this needs "
        "1,001. At 2026-12-01 00:00:00+00:00, or once that is changed, it continues by itself."
    )
    assert [type for _, type in await kind.log(id)][-2:] == ["budget.reached", f"{kind.noun}.released"]
    assert await claims.claim() is None
    assert (await usage(database))["tokens"] == 600
    later = await claimed(at_noon(claims, MIDNIGHT))
    assert (await kind.get(id)).shortage is None
    async with driven(database, later, MIDNIGHT) as meter:
        await call(meter, Usage(0, 1_000))
    assert (await usage(database))["tokens"] == 600
    assert (await usage(database, day=MIDNIGHT))["tokens"] == 1_000


async def test_it_continues_when_the_budget_is_raised_and_stops_again_where_it_is_lowered(database: Database) -> None:
    await limit(database, max_usd=1.0)
    run_id, claims = await queued(database), at_noon(Runs(database).worker("w"))
    for most, fits in ((1.0, False), (0.5, False), (3.0, True)):
        await limit(database, max_usd=most)
        lease = await claimed(claims)
        if fits:
            async with driven(database, lease) as meter:
                await call(meter, Usage(0, 10, 2.0))
            break
        await give_back(claims, lease, await stopped(database, lease, Usage(0, 10, 2.0)))
        assert await claims.claim() is None
    assert await status_of(database, run_id) == "running"
    assert (await usage(database))["usd"] == pytest.approx(2.0)


async def test_the_budgets_of_key_and_project_both_hold(database: Database) -> None:
    """Each is reached first by someone; what another key or project uses does not count."""
    await limit(database, max_tokens=1_000)
    await limit(database, OWNER_OF_KEY, max_tokens=300)
    claims = at_noon(Runs(database).worker("w"))
    for project, started_by, fits, whose in (
        ("p", KEY, 300, "key agent"),
        ("p", None, 700, "project p"),
        ("other", KEY, 0, "key agent"),
    ):
        await queued(database, model_project=project, started_by=started_by)
        lease = await claimed(claims)
        reached = await stopped(database, lease, Usage(0, fits), Usage(0, 1))
        assert reached.exceeded.whose == whose
        await give_back(claims, lease, reached)
    await queued(database, model_project="other")
    async with driven(database, await claimed(claims)) as meter:
        await call(meter, Usage(0, 5_000))


async def test_sixteen_jobs_at_once_never_reserve_more(database: Database) -> None:
    """Each makes calls that use less than they reserve, so that room becomes free again and all of it is used."""
    await limit(database, max_tokens=2_000, max_tokens_at_once=500)
    claims, most = at_noon(Runs(database).worker("w")), 0.0
    ended = asyncio.Event()

    async def spend(lease: Lease[Any]) -> None:
        async with driven(database, lease) as meter:
            while True:
                async with meter.reserve(Phase.ROLLOUT, lambda: Usage(0, 100)) as reservation:
                    reservation.spend(Usage(0, 40))

    async def watch() -> None:
        nonlocal most
        while not ended.is_set():
            now = await usage(database)
            most = max(most, now["reserved_tokens"])
            assert now["tokens"] + now["reserved_tokens"] <= 2_000
            assert now["reserved_tokens"] <= 500

    for _ in range(16):
        await queued(database)
    leases = [await claimed(claims) for _ in range(16)]
    watching = asyncio.create_task(watch())
    results = await asyncio.gather(*map(spend, leases), return_exceptions=True)
    assert {type(result) for result in results} == {RunBudgetReached}
    ended.set()
    await watching
    assert most >= 200
    assert 1_900 < (await usage(database))["tokens"] <= 2_000


async def test_what_cannot_be_foreseen_takes_all_that_is_left(database: Database) -> None:
    await limit(database, max_tokens=1_000, max_usd=1.0)
    claims = at_noon(Runs(database).worker("w"))
    await queued(database)
    await queued(database)
    first, second = await claimed(claims), await claimed(claims)
    async with driven(database, first) as meter, driven(database, second) as other:
        async with meter.reserve(Phase.JUDGE, lambda: None) as reservation:
            now = await usage(database)
            assert (now["reserved_tokens"], now["reserved_usd"]) == (1_000, 1.0)
            waiting = asyncio.create_task(call(other, Usage(0, 500)))
            exceeded = await cast(Any, other.day).reserve(cast(Any, reservation), Usage(0, 500))
            assert exceeded is not None
            assert exceeded.waits
            reservation.spend(Usage(0, 200, 0.1))
        await cast(Any, meter.day).pay()  # what a worker does each second
        await waiting
    assert (await usage(database))["tokens"] == 700


async def test_a_conversation_that_outgrows_its_reservation_reserves_more_or_gives_way(database: Database) -> None:
    """What it has used is no longer reserved, prompts and replies alike."""
    await limit(database, max_tokens=1_000)
    claims = at_noon(Runs(database).worker("w"))
    await queued(database)
    lease = await claimed(claims)
    async with driven(database, lease) as meter, meter.reserve(Phase.ROLLOUT, lambda: Usage(60, 40)) as reservation:
        reservation.spend(Usage(60, 20))
        assert meter.reserved.tokens == 20
        await reservation.room_for(lambda: Usage(500, 100))
        now = await usage(database)
        assert (now["tokens"], now["reserved_tokens"]) == (80, 600)
        with pytest.raises(RunBudgetReached):
            await reservation.room_for(lambda: Usage(900, 100))
    now = await usage(database)
    assert (now["tokens"], now["reserved_tokens"]) == (80, 0)


async def test_what_a_dead_worker_had_reserved_counts_as_used_once(database: Database) -> None:
    await limit(database, max_tokens=1_000)
    run_id = await queued(database)
    first, second = (at_noon(Runs(database).worker(name)) for name in ("first", "second"))
    old = await claimed(first)
    async with driven(database, old) as zombie:
        async with zombie.reserve(Phase.ROLLOUT, lambda: Usage(0, 600)) as late:
            await lapse(database, run_id)
            new = await claimed(second)
            assert (await usage(database))["tokens"] == 600
            assert (await usage(database))["reserved_tokens"] == 0
            late.spend(Usage(0, 600))
        with pytest.raises(LeaseLost):
            await call(zombie, Usage(0, 1))
        async with driven(database, new) as meter:
            await call(meter, Usage(0, 400))
    assert (await usage(database))["tokens"] == 1_000


async def test_minutes_and_the_machines_dollars_are_paid_in_advance(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three seconds, two are paid at the beginning, and after the first one there is too little left for more."""
    monkeypatch.setattr(day_spending, "AHEAD_S", 2.0)
    await limit(database, max_minutes=3 / 60)
    await queued(database, machine_price_per_hour=3_600.0)
    claims = Runs(database).worker("w")
    lease = await claimed(claims)
    with pytest.raises(RunBudgetReached) as reached:
        async with driven(database, lease):
            await asyncio.Event().wait()
    assert reached.value.exceeded.limit == "max_minutes"
    used = await usage(database)
    assert 1 / 60 <= used["minutes"] <= 3 / 60
    assert used["usd"] == pytest.approx(60 * used["minutes"])
    await limit(database, max_usd=used["usd"] + 1.0)
    with pytest.raises(RunBudgetReached) as reached:
        async with driven(database, lease):
            raise AssertionError("nothing begins")
    assert reached.value.exceeded.limit == "max_usd"


async def test_sixteen_clients_and_workers_that_are_killed(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """Two processes with eight runs each; one is killed in the middle. The provider's bill says what was used."""
    bill, calls, most = tmp_path / "bill", 6, 4_000
    await limit(database, max_tokens=most)
    for _ in range(16):
        await queued(database)
    command = [sys.executable, "-m", "tests.fakes.day_spender", database_url, str(bill), str(calls), "8"]
    workers = [popen(command) for _ in range(2)]
    today = datetime.now(UTC)

    async def statuses() -> list[str]:
        now = await usage(database, day=today)
        assert sum(tokens for _, tokens in billed(bill)) <= most
        assert now["tokens"] + now["reserved_tokens"] <= most
        async with database() as tx:
            return list((await tx.execute(select(Runs.table.status))).scalars())

    async def look() -> list[str]:
        """On a machine that stalls, its database may end the transaction."""
        return await retry_while_database_is_down(statuses)

    try:
        await answered(look, lambda _: len(billed(bill)) > 20)
        workers[0].send_signal(signal.SIGKILL)
        workers[0].wait()
        await answered(look, lambda found: set(found) <= {"queued", "completed"} and "queued" in found)
        now = await usage(database, day=today)
        assert sum(tokens for _, tokens in billed(bill)) <= now["tokens"] <= most
        assert now["tokens"] > most - 16 * MOST.tokens
        assert now["reserved_tokens"] == 0
        await limit(database, max_tokens=10 * most)
        most *= 10
        workers[0] = popen(command)
        await answered(look, lambda found: set(found) == {"completed"})
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()
    async with database() as tx:
        used, count = (await tx.execute(select(DayUse.tokens, DayUse.usd))).all(), len(billed(bill))
    assert sum(tokens for tokens, _ in used) >= sum(tokens for _, tokens in billed(bill))
    assert sum(usd for _, usd in used) >= count * (MOST.usd or 0.0) - 1e-9
    assert count >= 16 * calls


def popen(command: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command)


async def put(client: httpx.AsyncClient, of: str, **limits: Any) -> httpx.Response:
    return await client.put(f"/budgets/{of}", json=limits)


async def test_a_run_waits_for_the_budget_of_its_project_and_ends_as_without_it(
    data_dir: Path, database_url: str
) -> None:
    def figures(run: Any) -> Any:
        return [(point["rewards"], point["success"]) for point in run["iterations"]], run["evaluations"]

    async with service(data_dir, database_url) as (client, model):
        undisturbed = await run_once(client, await start(client, RUN), lambda run: run["status"] == "completed")
        used, each = len(model.requests) * (PROMPT + REPLY), PROMPT + REPLY
        before = (await client.get("/budgets/project:learnloop")).json()
        assert before["used"]["tokens"] == used
        assert before["budget"]["max_tokens"] is None
        most, stops = used + 12_000, 0
        assert (await put(client, "project:learnloop", max_tokens=most)).status_code == 200
        run_id = await start(client, RUN)
        while True:
            run = await run_once(client, run_id, lambda run: run["status"] == "completed" or run["shortage"])
            assert len(model.requests) * each <= most
            if run["status"] == "completed":
                break
            stops += 1
            assert (run["status"], run["error"]) == ("queued", None)
            assert run["shortage"]["limit"] == "max_tokens"
            assert run["queue"]["reason"] == run["wait_reason"]
            assert "project learnloop" in run["wait_reason"]
            most += 8_000
            raised = (await put(client, "project:learnloop", max_tokens=most)).json()
            assert raised["budget"]["max_tokens"] == most
        assert stops >= 2
        assert figures(run) == figures(undisturbed)
        assert len(model.requests) * each == 2 * used


async def test_a_budget_in_dollars_refuses_what_has_no_price(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge, scripted_chat(talker) as model:
        models = [{"model": "openai/own", "base_url": judge.url}]
        settings = settings_for(data_dir, database_url, models=models)
        async with served(settings, cast(Any, learn_loop), ScriptedBackend(model.url)) as client:
            assert (await put(client, "project:learnloop", max_usd_at_once=3)).status_code == 200
            unpriced = {"judge": {"name": "ruler", "config": {"model": "openai/own"}}}
            for path, body in (
                ("/learn-loop", RUN | unpriced),
                ("/evaluations", {"models": [{"model": "learnloop/tiny"}], "scenarios": 2} | unpriced),
                ("/evaluations", {"models": [{"prompted": "openai/own"}], "scenarios": 2}),
            ):
                refused = await client.post(path, json=body)
                assert refused.status_code == 422, refused.text
                assert "No price is known for openai/own" in refused.json()["detail"]
            assert (await put(client, "project:learnloop")).json()["budget"]["max_usd_at_once"] is None
            assert (await client.post("/learn-loop", json=RUN | unpriced)).status_code == 202


async def test_no_key_changes_its_own_budget_nor_sees_another_projects(data_dir: Path, database_url: str) -> None:
    async with keyed(data_dir, database_url) as it:
        agent, theirs = await it.new("mail"), await it.new("sales")
        operator = await it.new("mail", set(Scope) - {Scope.PROPOSE})
        as_operator, as_service = bearer(operator.key), bearer(OPERATOR_KEY)
        key, own = f"/budgets/key:{agent.row.id}", f"/budgets/key:{operator.row.id}"
        other = f"/budgets/key:{theirs.row.id}"
        for headers, path, got, put_ in (
            (bearer(agent.key), key, 403, 403),
            (as_operator, key, 200, 200),
            (as_operator, own, 200, 403),
            (as_operator, "/budgets/project:mail", 200, 403),
            (as_operator, "/budgets/project:sales", 404, 404),
            (as_operator, other, 404, 404),
            (as_operator, "/budgets/key:nobody", 404, 404),
            (as_service, "/budgets/project:mail", 200, 200),
            (as_service, other, 200, 200),
        ):
            assert (await it.client.get(path, headers=headers)).status_code == got, path
            replied = await it.client.put(path, json={"max_usd": 2.5}, headers=headers)
            assert replied.status_code == put_, path
            assert replied.headers["content-type"] == (
                "application/json" if put_ == 200 else "application/problem+json"
            )
        refused: tuple[Any, ...] = (
            {"max_usd": 0},
            {"max_usd": -1},
            {"max_tokens": 1.5},
            {"max_token": 3},
            [],
            {"max_usd": "x"},
        )
        for bad in refused:
            replied = await it.client.put("/budgets/project:mail", json=bad, headers=as_service)
            assert replied.status_code == 422, bad
            assert replied.headers["content-type"] == "application/problem+json"


async def test_figures_are_of_whole_numbers_in_postgres(database: Database) -> None:
    """The limit is compared as JSON in `is_open`, whatever the type of number that was stored."""
    await limit(database, max_usd=2)
    run_id = await queued(database)
    async with database.begin() as tx:
        run = Runs.table
        shortage = {"budget": P.setting, "limit": "max_usd", "max": 2.0, "until": MIDNIGHT.isoformat()}
        await tx.execute(update(run).where(run.id == run_id).values(shortage=shortage))
        assert (await tx.execute(select(as_type(run.shortage["max"].astext, Float)))).scalar_one() == 2.0
    claims = at_noon(Runs(database).worker("w"))
    assert await claims.claim() is None
    await limit(database, max_usd=2.5)
    assert (await claimed(claims)).id == run_id
