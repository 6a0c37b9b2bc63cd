"""A baseline that an earlier run of the project made is taken over: whole, traceable, and not charged."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import delete, func, select, update

from app.claims.lease import Lease, LeaseLost
from app.db.tables import Checkpoint, Evaluation, Event, Iteration, Journal, Run, Trajectory
from app.errors import DATABASE_DOWN
from app.runs.claims import Limits, RunClaims
from app.runs.store import RunStore
from app.worker.reused_baseline import take_over_baseline
from app.worker.save_iteration import iteration_rows, save_iteration
from tests.fakes.engine_process import EngineProcess
from tests.fakes.sales_agent import sales_agent
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy, scripted_result
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.app.test_one_transaction import deadly
from tests.integration.app.test_results import SALES, completed
from tests.integration.app.webhook_stage import Stage, stage
from training.backends.base import Backend, ModelSpec, Policy, Reproducibility
from training.backends.embedded import connect
from training.learn_loop import learn_loop


class Known(ScriptedBackend):
    """One that says what decides its samples."""

    async def register(self, model: ModelSpec) -> Policy:
        policy = cast(ScriptedPolicy, await super().register(model))
        policy.reproducibility = Reproducibility(True, "It is scripted.", "the script")
        return policy


@asynccontextmanager
async def sales_service(data_dir: Path, database_url: str) -> AsyncIterator[tuple[httpx.AsyncClient, list[str]]]:
    """The real learn loop, and the models that were asked for, a request each."""
    asked: list[str] = []

    async def reliable(request: Mapping[str, Any]) -> Reply:
        asked.append(request["model"])
        reply = await sales_agent(request)
        return reply if reply.status == 200 else Reply(content="Dear Sir or Madam")

    async with scripted_chat(reliable) as chat:
        settings = settings_for(data_dir, database_url)
        async with served(settings, learn_loop, Known(chat.url)) as client:  # type: ignore[arg-type]
            yield client, asked


async def _trajectories(client: httpx.AsyncClient, run: Any) -> list[Any]:
    reply = await client.get(f"/runs/{run['run_id']}/trajectories", params={"iteration": 0, "limit": 200})
    found: list[Any] = reply.raise_for_status().json()["items"]
    return [(await client.get(f"/trajectories/{each['id']}")).raise_for_status().json() for each in found]


def _of_any_run(trajectory: Any) -> Any:
    own = ("id", "run_id", "model", "seconds", "started_at")
    return {name: value for name, value in trajectory.items() if name not in own}


async def _baseline_event(client: httpx.AsyncClient, run: Any) -> Any:
    events = (await client.get(f"/runs/{run['run_id']}/events")).raise_for_status().json()["items"]
    assert [each["seq"] for each in events] == [*range(1, len(events) + 1)]
    [event] = [each for each in events if (each["type"], each["iteration"]) == ("iteration.completed", 0)]
    return event["data"]


async def test_the_second_run_has_the_baseline_of_the_first(data_dir: Path, database_url: str) -> None:
    async with sales_service(data_dir, database_url) as (client, asked):
        first = await completed(client, **SALES)
        before = len(asked)
        own = await completed(client, **SALES, reuse_baseline=False)
        between = len(asked)
        second = await completed(client, **SALES)
        assert [run["baseline_run_id"] for run in (first, own, second)] == [None, None, first["run_id"]]

        made, copied = await _trajectories(client, own), await _trajectories(client, second)
        assert list(map(_of_any_run, copied)) == list(map(_of_any_run, made))
        assert not {each["id"] for each in made} & {each["id"] for each in copied}
        for name in ("evaluations", "best_checkpoint", "summary"):
            assert second[name] == own[name]
        assert [each["rewards"] for each in second["iterations"]] == [each["rewards"] for each in own["iterations"]]

        # What was not sampled is not used.
        assert between - before - (len(asked) - between) == sum(each["turns"] for each in made)
        assert own["rollouts"] - second["rollouts"] == len(made)
        for name in ("prompt", "completion"):
            tokens = sum(each[f"{name}_tokens"] for each in made)
            assert tokens > 0
            assert own["tokens"][name] - second["tokens"][name] == tokens
            assert own["cost"][f"{name}_tokens"] - second["cost"][f"{name}_tokens"] == tokens

        told, shown = await _baseline_event(client, own), await _baseline_event(client, second)
        assert shown["baseline_run_id"] == first["run_id"]
        assert shown["trajectory_id"] in {each["id"] for each in copied}
        assert shown["node_scores"] == told["node_scores"]
        verified = (await client.get(f"/runs/{second['run_id']}/verify")).raise_for_status().json()
        assert (verified["ok"], verified["differences"]) == (True, [])
        assert verified["trajectories"] == second["rollouts"] + len(copied)


async def test_the_first_run_can_go(data_dir: Path, database_url: str) -> None:
    """The copy is whole without it, and is taken over in its place."""
    async with sales_service(data_dir, database_url) as (client, _):
        first, second = await completed(client, **SALES), await completed(client, **SALES)
        before = await _trajectories(client, second)
        assert (await client.delete(f"/runs/{first['run_id']}")).is_success
        assert await _trajectories(client, second) == before
        assert (await client.get(f"/runs/{second['run_id']}/verify")).json()["ok"] is True
        third = await completed(client, **SALES)
        assert third["baseline_run_id"] == first["run_id"]
        assert list(map(_of_any_run, await _trajectories(client, third))) == list(map(_of_any_run, before))


KEY = "what decides it"


async def _baseline_of(here: Stage, run_id: str) -> None:
    """The run's own, as a worker saves it."""
    leases = _leases(here)
    claimed = await leases.claim()
    assert claimed is not None
    run, lease = claimed
    assert run.id == run_id
    assert not await take_over_baseline(here.sessions, lease, KEY, "own", wanted=True)
    policy = ScriptedPolicy(ModelSpec("p", run.model_name, "t"), "http://127.0.0.1:9/v1")
    await save_iteration(here.sessions, lease, iteration_rows(run, scripted_result(policy, 0, 0, 1, "an answer"), []))
    async with here.sessions.begin() as session:
        await session.execute(update(Run).where(Run.id == run_id).values(reproducible=True))


def _leases(here: Stage) -> RunClaims:
    return RunClaims(here.sessions, "w", ttl_s=600, limits=Limits(), backends=["b"], engine="here")


@asynccontextmanager
async def two_runs(database_url: str, project: str = "p") -> AsyncIterator[tuple[Stage, str, Lease[Run]]]:
    """One with a baseline, and the lease on a new one."""
    async with stage(database_url) as here:
        earlier = await here.run()
        await _baseline_of(here, earlier)
        await here.run(project)
        claimed = await _leases(here).claim()
        assert claimed is not None
        yield here, earlier, claimed[1]


async def _rows(here: Stage, run_id: str) -> list[int]:
    tables = (Iteration, Evaluation, Trajectory, Checkpoint, Event)
    async with here.sessions() as session:
        return [
            (await session.execute(select(func.count()).where(table.run_id == run_id))).scalar_one() for table in tables
        ]


async def test_a_repeated_commit_changes_nothing(database_url: str) -> None:
    async with two_runs(database_url) as (here, earlier, lease):
        for _ in range(2):
            assert await take_over_baseline(here.sessions, lease, KEY, "p/n@0", wanted=True)
        run = await RunStore(here.sessions).get(lease.id)
        assert (run.baseline_run_id, run.next_iteration, run.best_step) == (earlier, 1, 0)
        assert (await _rows(here, lease.id))[:4] == (await _rows(here, earlier))[:4]
        assert (run.rollouts, run.prompt_tokens, run.completion_tokens) == (0, 0, 0)
        async with here.sessions() as session:
            checkpoint = await session.get_one(Checkpoint, (lease.id, 0))
        assert (checkpoint.model, checkpoint.is_best) == ("p/n@0", True)


@pytest.mark.parametrize("table", ["iteration", "trajectory", "checkpoint", "event"])
async def test_who_dies_in_the_middle_has_taken_nothing(database_url: str, table: str) -> None:
    async with two_runs(database_url) as (here, _, lease):
        before = await _rows(here, lease.id)
        async with deadly(here, table):
            with pytest.raises(DATABASE_DOWN):
                await take_over_baseline(here.sessions, lease, KEY, "p/n@0", wanted=True)
        assert await _rows(here, lease.id) == before
        assert await take_over_baseline(here.sessions, lease, KEY, "p/n@0", wanted=True)


async def test_who_lost_the_run_takes_nothing(database_url: str) -> None:
    async with two_runs(database_url) as (here, _, lease):
        late = Lease(Run, lease.id, lease.epoch - 1, lease.worker)
        with pytest.raises(LeaseLost):
            await take_over_baseline(here.sessions, late, KEY, "p/n@0", wanted=True)


Change = Callable[[Stage, str], Awaitable[None]]


def _changing(statement: Callable[[str], Any]) -> Change:
    async def change(here: Stage, earlier: str) -> None:
        async with here.sessions.begin() as session:
            await session.execute(statement(earlier))

    return change


def _of(earlier: str) -> Any:
    return update(Run).where(Run.id == earlier)


@pytest.mark.parametrize(
    "change",
    [
        _changing(lambda earlier: update(Iteration).values(failed_rollouts=1)),
        _changing(lambda earlier: _of(earlier).values(reproducible=False)),
        _changing(lambda earlier: _of(earlier).values(pruned={"trajectories": "2026-01-01T00:00:00Z"})),
        _changing(lambda earlier: _of(earlier).values(pruned={"events": "2026-01-01T00:00:00Z"})),
        _changing(lambda earlier: _of(earlier).values(baseline_key="something else")),
        _changing(lambda earlier: _of(earlier).values(model_project="another")),
        _changing(lambda earlier: delete(Run).where(Run.id == earlier)),
    ],
    ids=["failed rollouts", "not exact", "no trajectories", "no events", "other key", "other project", "deleted"],
)
async def test_what_is_not_the_same_or_not_whole_is_not_taken(database_url: str, change: Change) -> None:
    async with two_runs(database_url) as (here, earlier, lease):
        await change(here, earlier)
        assert not await take_over_baseline(here.sessions, lease, KEY, "p/n@0", wanted=True)
        run = await RunStore(here.sessions).get(lease.id)
        assert (run.baseline_run_id, run.next_iteration, run.baseline_key) == (None, 0, KEY)


async def test_a_baseline_that_was_begun_is_finished(database_url: str) -> None:
    """By another worker, whose code or machine may be others: then nobody can take it over."""
    async with two_runs(database_url) as (here, _, lease):
        entry = Journal(run_id=lease.id, iteration=0, name="rollout/test.greedy/0", epoch=lease.epoch, value=b"")
        assert not await take_over_baseline(here.sessions, lease, KEY, "p/n@0", wanted=False)
        async with here.sessions.begin() as session:
            session.add(entry)
        for key, kept in ((KEY, KEY), ("that of another machine", None), (KEY, None)):
            assert not await take_over_baseline(here.sessions, lease, key, "p/n@0", wanted=True)
            assert (await RunStore(here.sessions).get(lease.id)).baseline_key == kept


class RealBackend(ScriptedBackend):
    """Not scripted at all: the engine at that address."""

    async def connect(self, name: str) -> Backend:
        return await connect(self.endpoint_url, "no key")


def _weights(engine: EngineProcess, name: str) -> tuple[int, str]:
    """Step and hash of the model's newest checkpoint."""
    newest = max((engine.data_dir / "models" / "learnloop" / name / "checkpoints").iterdir())
    manifest = json.loads((newest / "manifest.json").read_text())
    return manifest["step"], manifest["files"]["model.safetensors"]["sha256"]


async def test_on_the_engine_nothing_comes_out_otherwise(data_dir: Path, tmp_path: Path, database_url: str) -> None:
    size = {"iterations": 1, "groups_per_iteration": 2, "rollouts_per_group": 4, "max_turns": 3}
    evaluation = {"scenarios": 1, "samples": 1, "test_scenarios": 1}
    with EngineProcess(tmp_path / "engine") as engine:
        backend = RealBackend(engine.base_url)
        async with served(settings_for(data_dir, database_url), cast(Any, learn_loop), backend) as client:
            runs = [
                await completed(client, **size, evaluation=evaluation, model={"name": name}, reuse_baseline=reuse)
                for name, reuse in (("first", True), ("own", False), ("second", True))
            ]
            forked = {"model": {"name": "forked"}, "checkpoint": 1}
            reply = await client.post(f"/runs/{runs[0]['run_id']}/fork", json=forked)
            fork = await run_with(client, reply.raise_for_status().json()["run_id"], "completed", "failed")
        weights = [_weights(engine, name) for name in ("first", "own", "second")]
    first, own, second = runs
    assert own["reproducible"], own["reproducible_reason"]
    assert [run["baseline_run_id"] for run in runs] == [None, None, first["run_id"]]
    for name in ("evaluations", "summary", "best_checkpoint"):
        assert second[name] == own[name]
    assert [each["rewards"] for each in second["iterations"]] == [each["rewards"] for each in own["iterations"]]
    assert weights == [weights[0]] * 3
    assert weights[0][0] == 1
    assert (fork["status"], fork["baseline_run_id"]) == ("completed", None)  # it begins with other weights
