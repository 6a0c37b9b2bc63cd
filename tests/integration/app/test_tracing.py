"""Traces of runs: the tree that reaches W&B Weave and a collector, and runs that do not mind when these are away."""

import asyncio
import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from ulid import ULID

from learnloop_service.app.tracing.tracer import open_tracing
from learnloop_service.environment.email_search.synthetic import make_world, parse_address
from learnloop_service.training.loop.learn_loop import learn_loop
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_chat import call as tool_call
from tests.fakes.scripted_judge import KEY as JUDGE_KEY
from tests.fakes.scripted_judge import scripted_judge
from tests.fakes.scripted_learning import ScriptedBackend, ScriptedLoop
from tests.fakes.trace_server import COLLECTOR, TraceServer, trace_server
from tests.integration.app.served import run_once, run_with, served, settings_for
from tests.integration.app.span_paths import path
from tests.integration.training.scripted_runs import address_of

KEY = "c0ffee" * 6 + "beef"
OPENAI = "plain-canary-4711"
COLLECTOR_KEY = "collector-canary-4712"
OPERATOR = "operator-canary-4713-" + "x" * 20
SENT = "sent-canary-4714"
RUN = {
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 3,
    "concurrency": 4,
    "seed": 5,
    "evaluation": {"every": 1, "scenarios": 2, "test_scenarios": 2, "samples": 1},
}


SHORT = {
    "iterations": 1,
    "groups_per_iteration": 1,
    "rollouts_per_group": 2,
    "evaluation": {"scenarios": 1, "test_scenarios": 1, "samples": 1},
}


async def talkative(request: Mapping[str, Any]) -> Reply:
    """Searches first, and says every secret it can think of; then answers, half of the time right."""
    if not any(message["role"] == "tool" for message in request["messages"]):
        return tool_call("search_inbox", keywords=["kickoff", OPENAI, f"api_key={KEY}", "Bearer canary-in-a-header"])
    world_key = parse_address(address_of(request))
    assert world_key
    world = make_world(*world_key)
    right = request["seed"] / 2**53 < 0.5
    answer = world.answer if right else f"no idea, {OPENAI}"
    return tool_call("return_final_answer", answer=answer, sources=[world.source_id])


def traced(weave: TraceServer, data_dir: Path, database_url: str | None, **more: Any) -> Any:
    options = {"weave_project": "team/mail", "wandb_api_key": KEY, "wandb_base_url": weave.url} | more
    return settings_for(data_dir, database_url, openai_api_key=OPENAI, **options)


async def learn(settings: Any, **more: Any) -> tuple[Any, list[Any]]:
    """The run that the service makes of `RUN`, its trajectories and an answer of its agent; the service has stopped."""
    async with (
        scripted_chat(talkative) as model,
        served(settings, cast(Any, learn_loop), ScriptedBackend(model.url)) as client,
    ):
        accepted = (await client.post("/learn-loop", json=RUN | more)).raise_for_status().json()
        run = await run_with(client, accepted["run_id"], "completed", "failed")
        listed = await client.get(f"/runs/{run['run_id']}/trajectories", params={"limit": 200})
        trajectories = listed.raise_for_status().json()["items"]
        task = trajectories[0]["scenario"]["task"]
        answer = await client.post("/ask", json={"run_id": run["run_id"], **task})
    return run, [*trajectories, answer.raise_for_status().json()]


AGENT = "invoke_agent email_search"


def a_rollout(where: tuple[str, ...], count: int) -> Counter[tuple[str, ...]]:
    """What `count` rollouts there open."""
    agent_path = (*where, AGENT)
    tools = ("execute_tool search_inbox", "execute_tool return_final_answer")
    return Counter(
        {agent_path: count, (*agent_path, "chat"): 2 * count} | {(*agent_path, tool): count for tool in tools}
    )


async def test_a_run_is_one_tree_without_a_secret(data_dir: Path, database_url: str) -> None:
    with trace_server(key=KEY) as weave:
        run, trajectories = await learn(traced(weave, data_dir, database_url))
    assert run["status"] == "completed"
    spans = weave.spans()
    texts = [str(span.inputs) for span in spans.values() if span.name in ("execute_tool search_inbox", "chat")]
    assert sum("kickoff" in inputs for inputs in texts) > 30
    assert all("[redacted]" in inputs for inputs in texts if "kickoff" in inputs)
    for secret in (KEY, OPENAI, "canary", database_url):
        assert secret not in weave.received
    root, ask = sorted((span for span in spans.values() if span.parent_id is None), key=lambda span: span.started_ns)
    top, base, once = ("learn_loop",), ("learn_loop", "baseline"), ("learn_loop", "iteration")
    ahead = (*top, "rollouts ahead")
    rollout_path, judged = (*ahead, "rollouts"), (*ahead, "verdicts")
    counted = Counter(path(span, spans) for span in spans.values())
    trained = counted.pop((*once, "train"))
    assert 1 <= trained <= 2
    # Validation at the start and after each of two iterations, test at the start and the end; each in two modes, for
    # two scenarios.
    assert counted == (
        Counter({top: 1, (*top, "drive"): 1, base: 1, once: 2})
        + Counter({ahead: 2, rollout_path: 2, judged: 2, (*judged, "judge"): 4})
        + Counter({(*base, "evaluate"): 4, (*base, "evaluate", "judge"): 8})
        + Counter({(*once, "evaluate"): 6, (*once, "evaluate", "judge"): 12})
        + a_rollout(rollout_path, 12)
        + a_rollout((*base, "evaluate"), 8)
        + a_rollout((*once, "evaluate"), 12)
        + Counter({("ask",): 1})
        + a_rollout(("ask",), 1)
    )
    assert [span.name for span in (root, ask)] == ["learn_loop", "ask"]
    assert root.trace_id == ULID.from_str(run["run_id"]).hex
    assert root.inputs["run_id"] == run["run_id"]
    assert root.inputs["environment"]["name"] == "email_search"
    assert root.inputs["judge"]["name"] == "reference"
    assert root.inputs["model"]["name"] == run["model"]["name"]
    assert root.inputs["config"]["rollouts_per_group"] == 3
    rollouts = [span for span in spans.values() if span.name == AGENT]
    assert {span.attributes["learnloop.rollout_id"] for span in rollouts} == {
        trajectory.get("id") or trajectory["trajectory_id"] for trajectory in trajectories
    }
    numbers = {span.id: span.attributes.get("learnloop.iteration") for span in spans.values()}
    parts = [span for span in spans.values() if span.name in ("baseline", "iteration")]
    assert {numbers[span.id] for span in parts} == {0, 1, 2}
    for span in spans.values():
        above = spans.get(span.parent_id or "")
        assert span.attributes["learnloop.run_id"] == run["run_id"]
        assert span.attributes["wandb.attributes.run_id"] == run["run_id"]
        assert span.ended_ns >= span.started_ns
        assert span.error is None
        if above is not None:
            assert span.trace_id == above.trace_id
            assert span.started_ns >= above.started_ns
            if above is not root:  # which ends where it begins
                assert span.ended_ns <= above.ended_ns
                assert numbers[span.id] == numbers[above.id]
    train = next(span for span in spans.values() if span.name == "train")
    assert train.output["metrics"] == {"loss": 0.5}
    judge = next(span for span in spans.values() if span.name == "judge")
    assert {verdict["id"] for verdict in judge.output} == set(judge.inputs["attempts"])
    tool = next(span for span in spans.values() if span.name == "execute_tool search_inbox")
    assert tool.inputs["keywords"][0] == "kickoff"
    assert tool.attributes["output.value"] == tool.attributes["gen_ai.tool.call.result"]


async def test_workers_that_take_a_run_over_from_each_other_build_one_tree(data_dir: Path, database_url: str) -> None:
    request_numbers, stuck, moves = itertools.count(1), asyncio.Event(), asyncio.Event()

    async def slow(request: Mapping[str, Any]) -> Reply:
        """The baseline takes 16 requests; the first iteration gets stuck in the middle of its rollouts, which have
        begun beside the saving of the baseline."""
        if next(request_numbers) > 20:
            stuck.set()
            await moves.wait()
        return await talkative(request)

    with trace_server(key=KEY) as weave:
        settings = traced(weave, data_dir, database_url)
        async with scripted_chat(slow) as model:
            backend = ScriptedBackend(model.url)
            async with served(settings, cast(Any, learn_loop), backend) as client:
                accepted = (await client.post("/learn-loop", json=RUN)).raise_for_status().json()
                await stuck.wait()
                await run_once(client, accepted["run_id"], lambda run: run["progress"]["iteration"] == 1)
            moves.set()
            async with served(settings, cast(Any, learn_loop), backend) as client:
                run = await run_with(client, accepted["run_id"], "completed", "failed")
    assert run["status"] == "completed"
    spans = weave.spans()
    assert {span.trace_id for span in spans.values()} == {ULID.from_str(run["run_id"]).hex}
    assert all(span.parent_id in spans for span in spans.values() if span.name != "learn_loop")
    below = [span for span in spans.values() if path(span, spans)[:-1] == ("learn_loop",)]
    assert Counter(span.name for span in below) == {"drive": 2, "baseline": 1, "iteration": 3, "rollouts ahead": 3}
    assert [span.error for span in below if span.name == "drive"].count(None) == 1


async def test_requests_to_a_judge_model_lie_below_their_judge(data_dir: Path, database_url: str) -> None:
    with trace_server(key=KEY) as weave:
        async with scripted_judge() as model:
            options = {"judge_model": "openai/scripted", "judge_base_url": model.url, "judge_api_key": JUDGE_KEY}
            run, _ = await learn(traced(weave, data_dir, database_url, **options), judge={"name": "ruler"})
    assert run["status"] == "completed"
    spans = weave.spans()
    requests = [span for span in spans.values() if span.attributes.get("gen_ai.request.model") == "openai/scripted"]
    assert len(requests) == len(model.requests) > 0
    for request in requests:
        judge = spans[str(request.parent_id)]
        assert (request.name, judge.name) == ("chat", "judge")
        assert judge.inputs["judge"] == "ruler"
        assert request.attributes["learnloop.iteration"] == judge.attributes["learnloop.iteration"]
        assert request.inputs[0]["role"] == "system"
        assert "scores" in request.output[0]["parts"][0]["content"]
    assert JUDGE_KEY not in weave.received


async def test_a_collector_gets_the_same_spans_and_nobody_the_others_key(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the exporter of OpenTelemetry's SDK reads it, wherever it sends to.
    headers = f"x-collector-key=Bearer%20{COLLECTOR_KEY}"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", headers)
    with trace_server(key=KEY) as weave, trace_server() as collector:
        more = {"otel_exporter_otlp_endpoint": collector.url, "otel_exporter_otlp_headers": headers}
        await learn(traced(weave, data_dir, database_url, **more))
    requests = {span.id for span in collector.spans(COLLECTOR).values() if "http.route" in span.attributes}
    assert requests
    assert weave.spans().keys() == collector.spans(COLLECTOR).keys() - requests  # they are no calls of models
    assert not any(
        name.startswith("wandb.") for span in collector.spans(COLLECTOR).values() for name in span.attributes
    )
    for _, received, _ in collector.requests:
        assert received["x-collector-key"] == f"Bearer {COLLECTOR_KEY}"
        assert "authorization" not in received
    assert not any("x-collector-key" in headers for _, headers, _ in weave.requests)
    assert COLLECTOR_KEY not in collector.received + weave.received


async def test_a_request_is_a_span_without_what_was_sent(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "learnloop-of-the-team")
    caller = f"00-{'ab' * 16}-{'cd' * 8}-01"
    with trace_server() as collector:
        more = {"otel_exporter_otlp_endpoint": collector.url, "require_keys": "always", "operator_key": OPERATOR}
        async with served(settings_for(data_dir, database_url, **more), ScriptedLoop()) as client:
            key = {"authorization": f"Bearer {OPERATOR}"}
            accepted = await client.post("/learn-loop", headers=key | {"traceparent": caller}, json={"iterations": 1})
            run_id = accepted.json()["run_id"]
            reply = await client.get(f"/runs/{run_id}", headers=key)
            await client.get(f"/runs/{SENT}", params={"x": SENT}, headers=key | {"cookie": SENT, "x-any": SENT})
            await client.get("/runs", headers={"authorization": f"Bearer {SENT}"})
            await client.request("PROPFIND", f"/{SENT}")
            for path in ("/health/live", "/health/ready", "/metrics"):
                await client.get(path, headers=key)
            await client.post("/session", headers=key)
    spans = [span for span in collector.spans(COLLECTOR).values() if "http.request.method" in span.attributes]
    named = {span.name: span for span in spans}
    assert named.keys() == {"POST /learn-loop", "GET /runs/{run_id}", "GET", "_OTHER", "POST /session"}
    start = named["POST /learn-loop"]
    assert (start.trace_id, start.parent_id) == ("ab" * 16, "cd" * 8)
    assert start.attributes["http.response.status_code"] == 202
    assert start.attributes["http.route"] == "/learn-loop"
    assert named["GET"].attributes["http.response.status_code"] == 401
    about = {span.attributes.get("learnloop.run_id") for span in spans if span.name == "GET /runs/{run_id}"}
    assert about == {run_id, None}  # None: there was no such run
    assert reply.headers["x-request-id"] in {span.attributes["learnloop.request_id"] for span in spans}
    for secret in (OPERATOR, SENT, "ls_"):
        assert secret not in collector.received
    assert "learnloop-of-the-team" in collector.received


async def test_the_sampler_of_the_environment_counts_for_requests_and_not_for_runs(
    data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with trace_server() as collector:
        settings = settings_for(data_dir, database_url, otel_exporter_otlp_endpoint=collector.url)
        async with served(settings, ScriptedLoop()) as client:
            accepted = await client.post("/learn-loop", json={"iterations": 1})
            await run_with(client, accepted.json()["run_id"], "completed")
    assert {span.name for span in collector.spans(COLLECTOR).values()} == {"learn_loop", "drive"}


def figures(run: Any) -> Any:
    """What does not depend on the clock."""
    iterations = [{**iteration, "timing": None, "created_at": None} for iteration in run["iterations"]]
    return run["status"], run["error"], run["best_checkpoint"], run["tokens"], run["evaluations"], iterations


@pytest.fixture(scope="module")
def untraced_runs() -> list[Any]:
    """The run that nobody traced, once a test has needed it."""
    return []


@pytest.mark.parametrize(
    ("trouble", "options"),
    [
        ("errors", {}),
        ("hangs", {}),
        ("absent", {"wandb_base_url": "http://127.0.0.1:9"}),
        ("wrong key", {"wandb_api_key": "d" * 40}),
        ("no project", {"weave_project": "strangers/mail"}),
    ],
)
async def test_a_run_does_not_mind_trouble_with_weave(
    trouble: str, options: dict[str, Any], untraced_runs: list[Any], data_dir: Path, database_url: str
) -> None:
    if not untraced_runs:
        untraced_runs.append((await learn(settings_for(data_dir, database_url), **SHORT))[0])
    with trace_server(key=KEY) as weave, capture_logs() as logs:
        if trouble == "errors":
            weave.status = 500
        if trouble == "hangs":
            weave.hanging.set()
        run, _ = await learn(traced(weave, data_dir, database_url, **options), **SHORT)
        request_count = len(weave.requests)
    assert figures(run) == figures(untraced_runs[0])
    assert run["status"] == "completed"
    assert weave.spans() == {}
    assert (request_count > 0) == (trouble != "absent")
    warnings = {entry["event"]: entry for entry in logs if entry["log_level"] == "warning"}
    # Rollouts to train on, to evaluate before and after in two modes, and the ask: with 5 spans each, and what they are
    # part of.
    assert warnings["some traces never reached W&B Weave"]["lost"] >= 5 * (2 + 4 + 4 + 1) + 10
    if trouble != "hangs":
        assert "traces do not reach W&B Weave, runs go on without it" in warnings
    assert not any(secret in str(logs) for secret in (KEY, OPENAI, "d" * 40))


async def test_without_a_destination_nothing_is_traced(data_dir: Path) -> None:
    collector = "http://localhost:4318"
    for settings in (
        {},
        {"wandb_api_key": KEY},
        {"weave_project": "team/mail"},
        {"otel_exporter_otlp_endpoint": collector, "otel_sdk_disabled": True},
    ):
        off = open_tracing(settings_for(data_dir, None, **settings))
        assert (off.tracer, off.request_tracer) == (None, None)


def test_untraced_neither_weave_nor_opentelemetrys_sdk_is_imported() -> None:
    code = (
        "import sys, learnloop_service.app.service, learnloop_service.training.loop.learn_loop; "
        "sys.exit(bool({'weave', 'opentelemetry.sdk', 'opentelemetry.exporter'} & sys.modules.keys()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
