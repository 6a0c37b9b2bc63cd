"""Budgets of runs over the real learn loop: reserved before a call, settled after, kept in the ledger."""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from learnloop_service.app.domain.stored_request import StoredBudget
from learnloop_service.app.runs.budget import Meter, PriorUsage, RunBudgetReached
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import ModelSpec, Policy
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.types import EvaluationConfig, RunConfig
from tests.fakes.scripted_chat import Reply, ScriptedChat, scripted_chat
from tests.fakes.scripted_judge import scripted_judge
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedPolicy
from tests.integration.app.served import ended, served, settings_for, start
from tests.integration.app.talking_runs import PROMPT, REPLY, RUN, TURNS, service, talker


@pytest.fixture(scope="module", autouse=True)
def art() -> None:
    """Imported before the clocks of the tests run: it takes seconds."""
    import_art()


class Remembering(ScriptedBackend):
    """As an engine of ours, whose conversations begin again after it was away."""

    async def register(self, model: ModelSpec) -> Policy:
        policy = await super().register(model)
        endpoint = policy.endpoint
        policy.endpoint = lambda step=None: replace(endpoint(step), remembers=True)  # type: ignore[method-assign]
        return policy


async def ledger_of(client: httpx.AsyncClient, run_id: str) -> Any:
    return (await client.get(f"/runs/{run_id}/ledger", params={"limit": 200})).raise_for_status().json()


async def newest_events(client: httpx.AsyncClient, run_id: str) -> list[Any]:
    """The two newest."""
    listed = await client.get(f"/runs/{run_id}/events", params={"limit": 200})
    return list(listed.raise_for_status().json()["items"][-2:])


def figures(run: Any) -> Any:
    return [(point["rewards"], point["success"]) for point in run["iterations"]], run["evaluations"]


@pytest.mark.parametrize("staleness", [0, 1])
async def test_a_budget_of_tokens_is_never_exceeded_and_the_run_ends_as_without_it(
    data_dir: Path, database_url: str, staleness: int
) -> None:
    """Also where rollouts run ahead: what they take is charged to their own iteration."""
    ahead = {"pipeline": {"max_staleness": staleness}}
    async with service(data_dir, database_url) as (client, model):
        undisturbed = await ended(client, await start(client, RUN | ahead))
        whole = len(model.requests) * (PROMPT + REPLY)
        model.requests.clear()
        most, pauses = 12_000, 0
        run_id = await start(client, RUN | ahead | {"budget": {"max_tokens": most, "max_usd": 5}})
        while (run := await ended(client, run_id))["status"] == "paused":
            pauses += 1
            ledger = await ledger_of(client, run_id)
            assert ledger["budget"]["spent_tokens"] == len(model.requests) * (PROMPT + REPLY) <= most
            reached, paused = await newest_events(client, run_id)
            assert (reached["type"], paused["type"]) == ("budget.reached", "run.paused")
            assert reached["data"]["limit"] == "max_tokens"
            assert reached["data"]["max"] == most
            needs = int(reached["data"]["needs"])
            assert needs > most
            assert "max_tokens" in paused["data"]["reason"]
            for body in (None, {"budget": {"max_usd": 9}}, {"budget": {"max_tokens": needs - 1}}):
                refused = await client.post(f"/runs/{run_id}/resume", json=body)
                assert refused.status_code == 409, refused.text
            most = needs + 3_000
            resumed = await client.post(f"/runs/{run_id}/resume", json={"budget": {"max_tokens": most}})
            assert resumed.status_code == 202, resumed.text
        assert run["status"] == "completed"
        assert run["request"]["budget"] == {"max_usd": 5, "max_minutes": None, "max_tokens": most}
        assert pauses >= 2
        assert figures(run) == figures(undisturbed)
        assert len(model.requests) * (PROMPT + REPLY) == whole  # nothing was done twice
        ledger = await ledger_of(client, run_id)
        assert ledger["totals"]["prompt_tokens"] + ledger["totals"]["completion_tokens"] == whole
        # Pauses waste nothing: only groups that could not be trained on do, as without a budget.
        wasted = (await ledger_of(client, undisturbed["run_id"]))["totals"]["wasted_tokens"]
        assert ledger["totals"]["wasted_tokens"] == wasted < whole
        assert run["cost"] | ledger["totals"] == run["cost"]
        rows = [(row["iteration"], row["phase"]) for row in ledger["items"] if not row["wasted"]]
        assert len(set(rows)) == len(rows)
        assert {phase for iteration, phase in rows if iteration == 1} >= {"rollout", "judge", "train", "evaluate"}


async def test_a_budget_of_one_cent_stops_the_judge(data_dir: Path, database_url: str) -> None:
    async with scripted_judge() as judge:
        options = {"judge_model": "openai/gpt-4.1", "judge_base_url": judge.url, "judge_api_key": "k"}
        async with service(data_dir, database_url, **options) as (client, _):
            run_id = await start(client, RUN | {"judge": {"name": "ruler"}, "budget": {"max_usd": 0.01}})
            run = await ended(client, run_id)
            assert run["status"] == "paused", run["error"]
            reached, _ = await newest_events(client, run_id)
            assert reached["data"]["limit"] == "max_usd"
            before = await ledger_of(client, run_id)
            # A group may cost more than the dearest one before it, but none begins that is not thought to fit.
            assert 0 < before["budget"]["spent_usd"] < 0.015
            assert reached["data"]["needs"] > 0.01
            request_count = len(judge.requests)
            await client.post(f"/runs/{run_id}/resume", json={"budget": {"max_usd": None}})
            run = await ended(client, run_id)
            assert run["status"] == "completed", run["error"]
            after = await ledger_of(client, run_id)
            assert after["totals"]["usd"] == pytest.approx(run["cost"]["judge_usd"])
            assert len(judge.requests) > request_count
            assert run["cost"]["judge_prompt_tokens"] == judge.prompt_tokens  # no verdict was paid for twice


async def test_minutes_count_the_time_of_driving() -> None:
    now = 0.0

    async def slow(request: Mapping[str, Any]) -> Reply:
        nonlocal now
        now += 10.0
        return await talker(request)

    async with scripted_chat(slow) as model:
        meter = Meter(StoredBudget(max_minutes=2.0), PriorUsage(seconds=60.0), lambda: now)
        with pytest.raises(RunBudgetReached) as reached:
            await drive(model, meter)
    assert reached.value.exceeded.limit == "max_minutes"
    assert meter.spent.minutes >= 2.0
    assert meter.spent.minutes - 1.0 == pytest.approx(len(model.requests) / 6)
    assert model.answering == 0


async def test_what_nobody_wants_limited_is_not_held_up() -> None:
    async with scripted_chat(talker) as model:
        meter = Meter(StoredBudget(), PriorUsage())
        await drive(model, meter)
    assert model.most > 1
    assert meter.spent.tokens == len(model.requests) * (PROMPT + REPLY)


async def grower(request: Mapping[str, Any]) -> Reply:
    """As `talker`, but each prompt has as many tokens as its messages and tools have bytes: it grows with each turn."""
    reply = await talker(request)
    prompt = len(json.dumps([*request["messages"], {"tools": request["tools"]}], ensure_ascii=False).encode())
    reply.body["usage"] |= {"prompt_tokens": prompt, "total_tokens": prompt + REPLY}
    return reply


def asked_for(model: ScriptedChat) -> int:
    """The tokens of all requests to `grower`."""
    sizes = (
        len(json.dumps([*request["messages"], {"tools": request["tools"]}], ensure_ascii=False).encode())
        for request in model.requests
    )
    return sum(size + REPLY for size in sizes)


@pytest.mark.parametrize("most", [12_000, 30_000, 50_000])
async def test_prompts_that_grow_do_not_take_a_run_beyond_its_budget(most: int) -> None:
    async with scripted_chat(grower) as model:
        meter = Meter(StoredBudget(max_tokens=most), PriorUsage(prompt_per_turn=100.0))  # far too low
        with pytest.raises(RunBudgetReached) as reached:
            await drive(model, meter)
    assert 0 < meter.spent.tokens == asked_for(model) <= most < reached.value.exceeded.needs


async def test_what_a_rollout_took_before_it_began_again_is_wasted(data_dir: Path, database_url: str) -> None:
    """Its endpoint went away between two turns: the first turn's tokens are counted, and named as wasted."""
    cut, answered = Counter[str](), Counter[str]()

    async def away_once(request: Mapping[str, Any]) -> Reply:
        if any(message["role"] == "tool" for message in request["messages"]) and cut.total() < 3:
            cut["first"] += 1
            return Reply(status=503)
        answered["all"] += 1
        return await talker(request)

    settings = settings_for(data_dir, database_url)
    async with (
        scripted_chat(away_once) as model,
        served(settings, cast(Any, learn_loop), Remembering(model.url)) as client,
    ):
        run = await ended(client, await start(client, RUN | {"iterations": 1}))
        assert run["status"] == "completed", run["error"]
        ledger = await ledger_of(client, run["run_id"])
    whole = answered.total() * (PROMPT + REPLY)
    assert ledger["totals"]["prompt_tokens"] + ledger["totals"]["completion_tokens"] == whole
    assert ledger["totals"]["wasted_tokens"] == 3 * (PROMPT + REPLY)
    assert sum(row["prompt_tokens"] for row in ledger["items"] if row["wasted"]) == 3 * PROMPT


async def drive(model: ScriptedChat, meter: Meter) -> None:
    """A small run without the service."""
    config = RunConfig(
        iterations=1,
        groups_per_iteration=2,
        rollouts_per_group=3,
        concurrency=4,
        max_turns=TURNS,
        max_completion_tokens=REPLY,
        evaluation=EvaluationConfig(every=1, scenarios=2, samples=1, test_scenarios=2),
    )
    policy = ScriptedPolicy(ModelSpec("p", "m", "tiny"), model.url)
    results = learn_loop(config, SyntheticEmailSearch(), ReferenceJudge(), policy, budget=meter)
    async with aclosing(results):
        async for _ in results:
            pass


async def test_a_budget_in_dollars_needs_a_price_of_every_model(data_dir: Path, database_url: str) -> None:
    """Without one, the budget would never be reached. A server of one's own has a price of 0."""
    async with scripted_judge() as judge:
        free = {"usd_per_million_prompt_tokens": 0, "usd_per_million_completion_tokens": 0}
        served_models = [
            {"model": f"openai/{name}", "base_url": judge.url, **more} for name, more in (("own", {}), ("free", free))
        ]
        async with service(data_dir, database_url, models=served_models) as (client, _):
            unpriced = {"name": "ruler", "config": {"model": "openai/own"}}
            refused = await client.post("/learn-loop", json={**RUN, "judge": unpriced, "budget": {"max_usd": 5}})
            assert refused.status_code == 422, refused.text
            assert refused.json()["errors"][0]["loc"] == ["body", "budget", "max_usd"]
            assert "No price is known for openai/own" in refused.json()["detail"]
            run_id = await start(client, RUN | {"judge": unpriced, "budget": {"max_tokens": 50}})
            assert (await ended(client, run_id))["status"] == "paused"
            resumed = await client.post(f"/runs/{run_id}/resume", json={"budget": {"max_usd": 5}})
            assert (resumed.status_code, "No price is known" in resumed.json()["detail"]) == (422, True)
            priced = {"name": "ruler", "config": {"model": "openai/free"}}
            run_id = await start(client, RUN | {"judge": priced, "budget": {"max_usd": 5}})
            assert (await ended(client, run_id))["status"] == "completed"
