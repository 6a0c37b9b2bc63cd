"""Traces of runs in W&B Weave: the tree that its own client reads back, and runs that do not mind when it is away."""

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from app.tracing.tracer import weave_tracer
from environment.email_search.synthetic import make_world, parse_address
from tests.fakes.scripted_chat import Reply, scripted_chat
from tests.fakes.scripted_chat import call as tool_call
from tests.fakes.scripted_judge import KEY as JUDGE_KEY
from tests.fakes.scripted_judge import scripted_judge
from tests.fakes.scripted_learning import ScriptedBackend
from tests.fakes.weave_server import WeaveServer, weave_server
from tests.integration.app.served import run_with, served, settings_for
from tests.integration.training.test_learn_loop import address_of
from training.learn_loop import learn_loop

KEY = "c0ffee" * 6 + "beef"
OPENAI = "plain-canary-4711"
RUN = {
    "iterations": 2,
    "groups_per_iteration": 2,
    "rollouts_per_group": 3,
    "concurrency": 4,
    "seed": 5,
    "evaluation": {"every": 1, "scenarios": 2, "test_scenarios": 2, "samples": 1},
}


async def talkative(request: Mapping[str, Any]) -> Reply:
    """Searches first, and says every secret it can think of; then answers, half of the time right."""
    if not any(message["role"] == "tool" for message in request["messages"]):
        return tool_call("search_inbox", keywords=["kickoff", OPENAI, f"api_key={KEY}", "Bearer canary-in-a-header"])
    place = parse_address(address_of(request))
    assert place
    world = make_world(*place)
    right = request["seed"] / 2**53 < 0.5
    answer = world.answer if right else f"no idea, {OPENAI}"
    return tool_call("return_final_answer", answer=answer, sources=[world.source_id])


def traced(weave: WeaveServer, data_dir: Path, database_url: str | None, **more: Any) -> Any:
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
        asked = await client.post("/ask", json={"run_id": run["run_id"], **task})
    return run, [*trajectories, asked.raise_for_status().json()]


def read_back(weave: WeaveServer, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls as Weave's own client gives them."""
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer

    client = RemoteHTTPTraceServer(f"{weave.url}/traces")
    client.set_auth(("api", weave.key))
    return list(client.calls_query_stream({"project_id": "team/mail"}))


def path(call: Any, calls: Mapping[str, Any]) -> tuple[str, ...]:
    """Names from the root down to the call."""
    return (*(path(calls[call.parent_id], calls) if call.parent_id else ()), call.op_name)


def a_rollout(where: tuple[str, ...], count: int) -> Counter[tuple[str, ...]]:
    """What `count` rollouts there open."""
    each = (*where, "rollout")
    tools = ("tool.search_inbox", "tool.return_final_answer")
    return Counter({each: count, (*each, "turn"): 2 * count} | {(*each, tool): count for tool in tools})


async def test_a_run_is_one_tree(data_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with weave_server(key=KEY) as weave:
        run, trajectories = await learn(traced(weave, data_dir, database_url))
        calls = {call.id: call for call in read_back(weave, monkeypatch)}
    assert run["status"] == "completed"
    root, asked = sorted((call for call in calls.values() if call.parent_id is None), key=lambda call: call.started_at)
    top, base, once = ("learn_loop",), ("learn_loop", "baseline"), ("learn_loop", "iteration")
    counted = Counter(path(call, calls) for call in calls.values())
    trained = counted.pop((*once, "train"))
    assert 1 <= trained <= 2
    # Validation at the start and after each of two iterations, test at the start and the end; each in two modes, for
    # two scenarios.
    assert counted == (
        Counter({top: 1, base: 1, once: 2, (*once, "judge"): 4})
        + Counter({(*base, "evaluate"): 4, (*base, "evaluate", "judge"): 8})
        + Counter({(*once, "evaluate"): 6, (*once, "evaluate", "judge"): 12})
        + a_rollout(once, 12)
        + a_rollout((*base, "evaluate"), 8)
        + a_rollout((*once, "evaluate"), 12)
        + Counter({("ask",): 1})
        + a_rollout(("ask",), 1)
    )
    assert [call.op_name for call in (root, asked)] == ["learn_loop", "ask"]
    assert root.inputs["run_id"] == run["run_id"]
    assert root.inputs["environment"]["name"] == "email_search"
    assert root.inputs["judge"]["name"] == "reference"
    assert root.inputs["model"]["name"] == run["model"]["name"]
    assert root.inputs["config"]["rollouts_per_group"] == 3
    assert {call.inputs["rollout_id"] for call in calls.values() if call.op_name == "rollout"} == {
        trajectory.get("id") or trajectory["trajectory_id"] for trajectory in trajectories
    }
    numbers = {call.id: call.attributes.get("iteration") for call in calls.values()}
    assert sorted(numbers[call.id] for call in calls.values() if call.op_name in ("baseline", "iteration")) == [0, 1, 2]
    for call in calls.values():
        above = calls.get(call.parent_id)
        assert call.trace_id == (call.id if above is None else above.trace_id)
        assert call.attributes["run_id"] == run["run_id"]
        assert call.ended_at >= call.started_at
        assert call.exception is None
        if above is not None:
            assert call.started_at >= above.started_at
            assert call.ended_at <= above.ended_at
            assert numbers[call.id] == (call.inputs["iteration"] if above is root else numbers[above.id])
    train = next(call for call in calls.values() if call.op_name == "train")
    assert train.output["metrics"] == {"loss": 0.5}
    judge = next(call for call in calls.values() if call.op_name == "judge")
    assert {each["id"] for each in judge.output} == set(judge.inputs["attempts"])


async def test_requests_to_a_judge_model_lie_below_their_judge(data_dir: Path, database_url: str) -> None:
    with weave_server(key=KEY) as weave:
        async with scripted_judge() as model:
            options = {"judge_model": "openai/scripted", "judge_base_url": model.url, "judge_api_key": JUDGE_KEY}
            run, _ = await learn(traced(weave, data_dir, database_url, **options), judge={"name": "ruler"})
    assert run["status"] == "completed"
    requests = [call for call in weave.calls.values() if call["op_name"] == "judge.request"]
    assert len(requests) == len(model.requests) > 0
    for request in requests:
        judge = weave.calls[request["parent_id"]]
        assert judge["op_name"] == "judge"
        assert judge["inputs"]["judge"] == "ruler"
        assert request["attributes"] == judge["attributes"]
        assert request["inputs"]["messages"][0]["role"] == "system"
        assert "scores" in request["output"]
    assert JUDGE_KEY not in weave.received


async def test_no_secret_is_sent(data_dir: Path, database_url: str) -> None:
    with weave_server(key=KEY) as weave:
        await learn(traced(weave, data_dir, database_url))
    said = [call["inputs"]["arguments"] for call in weave.calls.values() if call["op_name"] == "tool.search_inbox"]
    assert said
    assert all("kickoff" in arguments and "[redacted]" in arguments for arguments in said)
    for secret in (KEY, OPENAI, "canary", database_url):
        assert secret not in weave.received


def figures(run: Any) -> Any:
    """What does not depend on the clock."""
    iterations = [{**each, "timing": None, "created_at": None} for each in run["iterations"]]
    return run["status"], run["error"], run["best_checkpoint"], run["tokens"], run["evaluations"], iterations


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
    trouble: str, options: dict[str, Any], data_dir: Path, database_url: str
) -> None:
    untraced, _ = await learn(settings_for(data_dir, database_url))
    with weave_server(key=KEY) as weave, capture_logs() as logs:
        if trouble == "errors":
            weave.status = 500
        if trouble == "hangs":
            weave.hanging.set()
        run, _ = await learn(traced(weave, data_dir, database_url, **options))
        asked = len(weave.requests)
    assert figures(run) == figures(untraced)
    assert run["status"] == "completed"
    assert weave.calls == {}
    assert (asked > 0) == (trouble != "absent")
    told = {entry["event"]: entry for entry in logs if entry["log_level"] == "warning"}
    # 1 run, 3 parts, 32 rollouts with 4 calls each, and one more for an ask; a start for each long one as well.
    assert told["some traces never reached Weave"]["lost"] >= 4 * 33 + 4
    if trouble != "hangs":
        assert "traces do not reach Weave, runs go on without it" in told
    assert not any(secret in str(logs) for secret in (KEY, OPENAI, "d" * 40))


async def test_without_a_project_or_a_key_nothing_is_traced(data_dir: Path) -> None:
    assert weave_tracer(settings_for(data_dir, None, wandb_api_key=KEY)) is None
    assert weave_tracer(settings_for(data_dir, None, weave_project="team/mail")) is None


def test_tracing_does_not_import_weave() -> None:
    code = "import sys, app.service, app.tracing.tracer, training.learn_loop; sys.exit('weave' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
