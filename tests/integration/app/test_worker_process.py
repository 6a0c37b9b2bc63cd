"""`learnloop worker` as a process: it drives the runs of an API process that drives none, on a shared engine."""

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from ulid import ULID

from learnloop_service.app.cli.service_process import free_port
from tests.conditions import answered
from tests.fakes.engine_process import ROOT, EngineProcess
from tests.fakes.forked_learnloop import learnloop
from tests.fakes.scripted_learning import ScriptedLoop
from tests.fakes.trace_server import COLLECTOR, SentSpan, TraceServer, trace_server
from tests.integration.app.scraped_metrics import figure
from tests.integration.app.served import run_once, served, settings_for
from tests.integration.app.served_processes import NO_ENGINE, process_environment
from tests.integration.app.span_paths import path
from tests.unit.deploy.metric_names import documented_metrics, offered_metrics, used_metrics

SMALL = {
    "groups_per_iteration": 2,
    "rollouts_per_group": 2,
    "max_turns": 2,
    "max_completion_tokens": 16,
    "evaluation": {"every": 10, "scenarios": 1, "samples": 1, "test_scenarios": 1},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("engine"), "--slots", "8") as process:
        yield process


@asynccontextmanager
async def _worker(data_dir: Path, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command in a process; killed at the end if it is still there."""
    process = await asyncio.create_subprocess_exec(
        *learnloop("worker", "--max-concurrent-runs", "2"),
        env=process_environment(data_dir, **environment) | {"PYTHONPATH": str(ROOT)},
        cwd="/",  # no .env of a developer
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _until(client: httpx.AsyncClient, run_id: str, is_wanted: Callable[[Any], bool]) -> Any:
    """The run once it is as wanted. A worker's first run imports ART, which takes a busy machine long."""
    return await run_once(client, run_id, is_wanted, timeout_s=600)


async def _check_metrics(port: int, engine: str) -> None:
    """What the worker counted itself, what the database knows, and what the engine says."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as worker:
        assert (await worker.get("/health/live")).status_code == 200
        assert (await worker.get("/runs")).status_code == 404
        steps = partial(figure, worker, "learnloop_engine_decode_steps_total", engine=engine)
        await answered(steps, lambda count: count > 0)  # told with the next look at the engine's health
        assert await figure(worker, "learnloop_engine_up", engine=engine) == 1
        assert await figure(worker, "learnloop_iteration_duration_seconds_count") >= 1
        assert await figure(worker, "learnloop_rollouts_total", kind="evaluation", outcome="ok") >= 1
        assert await figure(worker, "learnloop_worker_run_slots") == 2
        completed = partial(figure, worker, "learnloop_runs", status="completed")
        await answered(completed, lambda count: count == 1)
        page = (await worker.get("/metrics")).text
        assert used_metrics() <= offered_metrics(page)
        assert set(re.findall(r"^# TYPE (learnloop_\w+)", page, re.MULTILINE)) == documented_metrics()


@asynccontextmanager
async def _collector() -> AsyncIterator[TraceServer]:
    with trace_server() as collector:
        yield collector


def _check_traces(spans: Mapping[str, SentSpan], run_id: str) -> None:
    """Run, iteration, phase, rollout, turn and verdict: one tree, whoever of the workers sent which part."""
    assert {span.trace_id for span in spans.values()} == {ULID.from_str(run_id).hex}
    paths = Counter(path(span, spans) for span in spans.values() if _is_whole(span, spans))
    iteration, baseline = ("learn_loop", "iteration"), ("learn_loop", "baseline")

    def below_an_iteration(*names: str) -> int:
        """Rollouts and verdicts begin in their iteration, or ahead of it, beside the saving of the one before."""
        return paths[(*iteration, *names)] + paths[("learn_loop", "rollouts ahead", *names)]

    assert paths[("learn_loop",)] == paths[baseline] == 1
    assert paths[("learn_loop", "drive")] == 2
    assert paths[iteration] >= 4
    rollouts = ("rollouts", "invoke_agent email_search")
    assert below_an_iteration("rollouts") >= 4
    assert below_an_iteration(*rollouts) >= 4 * 4
    assert below_an_iteration(*rollouts, "chat") >= below_an_iteration(*rollouts)
    assert below_an_iteration("verdicts", "judge") >= 4
    assert paths[(*baseline, "evaluate", "judge")] >= 1
    phases = {span.attributes.get("learnloop.phase") for span in spans.values()}
    assert phases >= {"rollout", "judge", "evaluate"}


def _is_whole(span: SentSpan, spans: Mapping[str, SentSpan]) -> bool:
    """Whether all that it is below was sent: what a worker stopped in the middle of may lack a parent."""
    return span.parent_id is None or (span.parent_id in spans and _is_whole(spans[span.parent_id], spans))


@pytest.mark.long
async def test_workers_drive_a_run_one_after_the_other(
    data_dir: Path, database_url: str, engine: EngineProcess
) -> None:
    url = engine.base_url.removesuffix("/v1")
    settings = settings_for(data_dir, database_url, max_concurrent_runs=0, engine_url=url)
    environment = {"DATABASE_URL": database_url, "LEARNLOOP_ENGINE_URL": url}
    async with _collector() as collector, served(settings, ScriptedLoop()) as client:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        assert (await client.get("/health/ready")).json()["engine"] == "shared"
        run_id = (await client.post("/learn-loop", json={"iterations": 8, **SMALL})).json()["run_id"]
        queue = (await client.get(f"/runs/{run_id}")).json()["queue"]
        assert queue == {
            "position": 0,
            "reason": "It is next and starts when a worker takes it; no run is in progress.",
        }
        async with _worker(data_dir / "first", **environment) as first:
            await _until(client, run_id, lambda run: run["progress"]["iterations_done"] >= 1)
            first.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(first.wait(), 60) == 0
        assert (await client.get(f"/runs/{run_id}")).json()["status"] == "queued"
        port = free_port()
        async with _worker(data_dir / "second", LEARNLOOP_METRICS_PORT=str(port), **environment) as second:
            run = await _until(client, run_id, lambda run: run["status"] in ("completed", "failed"))
            await _check_metrics(port, engine=f"{url}/")  # as leases name it
            second.send_signal(signal.SIGTERM)  # it sends the last spans
            assert await asyncio.wait_for(second.wait(), 60) == 0
        events = (await client.get(f"/runs/{run_id}/events", params={"limit": 200})).json()["items"]
    assert (run["status"], run["error"]) == ("completed", None)
    assert [point["iteration"] for point in run["iterations"]] == list(range(9))
    started = [event["data"] for event in events if event["type"] == "run.started"]
    assert [payload["epoch"] for payload in started] == [1, 2]
    assert started[0]["worker"] != started[1]["worker"]
    assert [event["type"] for event in events].count("run.released") == 1
    _check_traces(collector.spans(COLLECTOR), run_id)


async def test_a_worker_without_a_database_says_so(data_dir: Path) -> None:
    async with _worker(data_dir, **NO_ENGINE) as process:
        assert process.stderr is not None
        errors = (await process.stderr.read()).decode()
        assert await process.wait() == 1
    assert "a worker needs DATABASE_URL" in errors
