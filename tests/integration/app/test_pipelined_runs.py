"""Runs whose rollouts run ahead of training, over the real learn loop: only sampling and training are not real."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from sqlalchemy import text

from learnloop_service.app.db.database import make_engine, parse_url
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import ModelSpec, Policy, TrainOutcome
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.conditions import answered, until
from tests.fakes.scripted_chat import Reply, ScriptedChat, call, scripted_chat
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy
from tests.integration.app.served import run_with, served, settings_for, start
from tests.integration.training.scripted_runs import address_of, lucky, skilled

RUN: dict[str, Any] = {
    "iterations": 4,
    "groups_per_iteration": 2,
    "rollouts_per_group": 4,
    "seed": 5,
    "pipeline": {"max_staleness": 1},
    "evaluation": {"every": 2, "scenarios": 2, "test_scenarios": 1, "samples": 1},
}
PER_ITERATION = 8
ANSWER = skilled(lucky)


@pytest.fixture(scope="module", autouse=True)
def art() -> None:
    """Imported before a test waits for it: it takes seconds."""
    import_art()


class Held(ScriptedBackend):
    """Trains only when `may_train` is set; notes every request for a checkpoint that was deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.may_train = asyncio.Event()
        self.may_train.set()
        self.sampled: Counter[int] = Counter()
        self.gone: list[int] = []

    async def register(self, model: ModelSpec) -> Policy:
        policy = await super().register(model)
        assert isinstance(policy, ScriptedPolicy)
        allowed = self.may_train

        async def follow(job_id: str, expected_step: int) -> TrainOutcome:
            await answered(_is_set(allowed), bool)
            return TrainOutcome(expected_step + 1, {"loss": 0.5})

        policy.follow = follow  # type: ignore[method-assign]
        return policy

    async def answer(self, request: Mapping[str, Any]) -> Reply:
        step = int(request["model"].rpartition("@")[2])
        self.sampled[step] += 1
        self.gone += [step for policy in self.policies.values() if step in policy.deleted]
        reply: Reply = await ANSWER(request)
        return reply


def _is_set(event: asyncio.Event) -> Any:
    """The run has an event loop of its own, so that it can only look."""

    async def ask() -> bool:
        return event.is_set()

    return ask


@asynccontextmanager
async def service(data_dir: Path, database_url: str, backend: Held, model: ScriptedChat) -> AsyncIterator[Any]:
    backend.endpoint_url = model.url
    async with served(settings_for(data_dir, database_url), cast(Any, learn_loop), backend) as client:
        yield client


async def completed(client: httpx.AsyncClient, run_id: str) -> Any:
    run = await run_with(client, run_id, "completed", "failed", "paused")
    assert run["status"] == "completed", run["error"]
    return run


async def items(client: httpx.AsyncClient, path: str, **query: Any) -> list[Any]:
    page = (await client.get(path, params={"limit": 100, **query})).raise_for_status().json()
    assert page["next_cursor"] is None
    return list(page["items"])


def figures(run: Any) -> Any:
    return [(point["rewards"], point["success"]) for point in run["iterations"]], run["evaluations"]


async def test_a_run_says_which_step_sampled_what_and_keeps_that_checkpoint_for_as_long(
    data_dir: Path, database_url: str
) -> None:
    backend = Held()
    async with (
        scripted_chat(backend.answer) as model,
        service(data_dir, database_url, backend, model) as client,
    ):
        run_id = await start(
            client, RUN | {"pipeline": {"max_staleness": 2}, "checkpoints": {"keep_best": 1, "keep_last": 1}}
        )
        run = await completed(client, run_id)
        assert run["request"]["pipeline"] == {"max_staleness": 2}
        iterations = await items(client, f"/runs/{run_id}/iterations")
        expected = [(None, None), (0, 0), (0, 1), (0, 2), (1, 2)]
        assert [(point["sampled_step"], point["staleness"]) for point in iterations] == expected
        assert [point["timing"]["ahead_s"] > 0 for point in iterations] == [False, True, True, True, True]
        for number, (step, _) in enumerate(expected[1:], start=1):
            tried = await items(client, f"/runs/{run_id}/trajectories", iteration=number, kind="train")
            assert [rollout["step"] for rollout in tried] == [step] * PER_ITERATION
        events = await items(client, f"/runs/{run_id}/events")
        payloads = [event["data"] for event in events if event["type"] == "iteration.completed"]
        assert [payload["iteration"] for payload in payloads] == [0, 1, 2, 3, 4]
        stale = [(payload.get("sampled_step"), payload.get("staleness")) for payload in payloads]
        assert stale == [(None, None), (None, None), *expected[2:]], "the exact loop's events have nothing new"
        assert (await client.get(f"/runs/{run_id}/verify")).json()["ok"]
        metrics = (await client.get("/metrics")).text
        assert float(metrics.partition("\nlearnloop_staleness_steps_total ")[2].split()[0]) >= 5
        assert backend.gone == []
        steps = [
            checkpoint["step"]
            for checkpoint in await items(client, f"/runs/{run_id}/checkpoints")
            if not checkpoint["deleted_at"]
        ]
        assert sorted({run["best_checkpoint"]["step"], 3, 4}) == steps


async def test_rollouts_that_ran_ahead_of_a_killed_service_are_not_made_again(
    data_dir: Path, database_url: str
) -> None:
    backend, engine = Held(), make_engine(parse_url(database_url))

    async def journal() -> set[tuple[int, str]]:
        async with engine.connect() as connection:
            return {(row.iteration, row.name) for row in await connection.execute(text("SELECT * FROM journal"))}

    async with scripted_chat(backend.answer) as model:
        async with service(data_dir, database_url, backend, model) as client:
            undisturbed = await completed(client, await start(client, RUN))
            sampled_once = backend.sampled.total()
            backend.may_train.clear()
            run_id = await start(client, RUN)
            await answered(journal, lambda entries: {(1, "train.job"), (2, "judge/train")} <= entries)
        worker = (data_dir / "worker").read_text()
        async with engine.begin() as connection:  # as SIGKILL would have left it
            await connection.execute(
                text(
                    "UPDATE run SET status = 'running', owner = :owner, epoch = epoch + 1, "
                    "lease_until = now() + interval '1 hour' WHERE id = :id"
                ),
                {"owner": worker, "id": run_id},
            )
        assert {iteration for iteration, _ in await journal()} == {1, 2}
        backend.may_train.set()
        async with service(data_dir, database_url, backend, model) as client:
            run = await completed(client, run_id)
            iterations = await items(client, f"/runs/{run_id}/iterations")
    assert [row["staleness"] for row in iterations] == [None, 0, 1, 1, 1]
    assert figures(run) == figures(undisturbed)
    assert backend.sampled.total() == 2 * sampled_once
    assert await journal() == set()
    await engine.dispose()


async def test_a_run_that_is_paused_while_its_rollouts_run_ahead_goes_on_with_them(
    data_dir: Path, database_url: str
) -> None:
    backend, engine = Held(), make_engine(parse_url(database_url))

    async def ahead() -> int:
        query = text("SELECT count(*) FROM journal WHERE iteration = 2 AND name LIKE 'rollout/train/%'")
        async with engine.connect() as connection:
            return int((await connection.execute(query)).scalar_one())

    async with scripted_chat(backend.answer) as model, service(data_dir, database_url, backend, model) as client:
        backend.may_train.clear()
        run_id = await start(client, RUN)
        await answered(ahead, lambda count: count == PER_ITERATION)
        await client.post(f"/runs/{run_id}/pause")
        await run_with(client, run_id, "paused")
        assert await ahead() == PER_ITERATION
        backend.may_train.set()
        await client.post(f"/runs/{run_id}/resume")
        await completed(client, run_id)
        ledger = (await client.get(f"/runs/{run_id}/ledger", params={"limit": 200})).json()
    tokens = ledger["totals"]["prompt_tokens"] + ledger["totals"]["completion_tokens"]
    assert tokens == 60 * backend.sampled.total()
    await engine.dispose()


async def test_a_run_that_stops_by_its_rule_keeps_what_was_answered_ahead(data_dir: Path, database_url: str) -> None:
    """Iteration 1 learns nothing and ends while the rollouts of iteration 2 are in their second turn."""
    backend, engine, hanging = Held(), make_engine(parse_url(database_url)), list[str]()
    environment = SyntheticEmailSearch()
    first, second = (
        {scenario.task["inbox_address"] for scenario in environment.scenarios("train", 2, RUN["seed"], start)}
        for start in (0, 2)
    )

    async def script(request: Mapping[str, Any]) -> Reply:
        address = address_of(request)
        if address in second and any(message["role"] == "tool" for message in request["messages"]):
            hanging.append(address)
            await asyncio.Event().wait()
        if address in second:
            return call("search_inbox", keywords=["kickoff"])
        if address in first:
            await until(lambda: len(hanging) == PER_ITERATION)
        return call("return_final_answer", answer="no idea", sources=["x"])

    async with scripted_chat(script) as model, service(data_dir, database_url, backend, model) as client:
        run_id = await start(
            client, RUN | {"on_no_signal": {"action": "pause", "after": 1}, "concurrency": 2 * PER_ITERATION}
        )
        run = await run_with(client, run_id, "paused")
        assert "taught nothing" in run["wait_reason"]
        async with engine.connect() as connection:
            names = list((await connection.execute(text("SELECT name FROM journal WHERE iteration = 2"))).scalars())
    assert sorted(names) == [f"calls/train/{number}/0" for number in range(PER_ITERATION)]
    await engine.dispose()


@pytest.mark.parametrize(
    ("more", "place", "said"),
    [
        ({"pipeline": {"max_staleness": 33}}, ["pipeline", "max_staleness"], "less than or equal to 32"),
        ({"pipeline": {"max_staleness": 1, "lag": 2}}, ["pipeline", "lag"], ""),
        (
            {"train_options": {"precalculate_logprobs": True}},
            ["train_options", "precalculate_logprobs"],
            "truncated_importance_sampling",
        ),
    ],
)
async def test_what_cannot_run_ahead_is_refused(
    data_dir: Path, database_url: str, more: Any, place: list[str], said: str
) -> None:
    async with served(settings_for(data_dir, database_url), cast(Any, learn_loop)) as client:
        refused = await client.post("/learn-loop", json=RUN | more)
    assert refused.status_code == 422, refused.text
    [fault] = refused.json()["errors"]
    assert fault["loc"] == ["body", *place]
    assert said in fault["msg"]


async def test_a_backend_that_samples_and_trains_in_turns_refuses(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "learnloop_service.app.operations.start.backend_checks.refusal", lambda *_: None
    )  # this machine has no GPU
    async with served(settings_for(data_dir, database_url), cast(Any, learn_loop)) as client:
        refused = await client.post("/learn-loop", json=RUN | {"backend": "local"})
        accepted = await client.post("/learn-loop", json=RUN | {"backend": "local", "pipeline": {"max_staleness": 0}})
    [fault] = refused.json()["errors"]
    assert (refused.status_code, fault["loc"]) == (422, ["body", "pipeline", "max_staleness"])
    assert "samples and trains in turns" in fault["msg"]
    assert accepted.status_code == 202
