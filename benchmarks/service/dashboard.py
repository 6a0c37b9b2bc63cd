"""Measure the dashboard on a run of 1,000 iterations and 10,000 trajectories in headless Chromium.

    python -m benchmarks.service.dashboard [--iterations 1000] [--trajectories 10000] [--events 30]

The rows are inserted directly into Postgres; nothing is trained. Prints the seconds from opening the address until the
run's figures and charts are there, the milliseconds from an iteration's commit until it is on the screen, and the
longest task of the page's main thread while all parts of the run are opened and scrolled. Tasks are measured in
wall-clock time and in CPU time, which does not depend on other load. The list of runs and the run are also opened for
the first time over a connection of 50 kB/s that delays each reply by 400 ms. Exits with 1 above a goal.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, update
from ulid import ULID

from benchmarks.durability.harness import migrated, serving
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, Event, Iteration, Run, Trajectory
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.events.log import append
from tests.browser.conftest import CHROMIUM
from tests.browser.visit import Visit
from tests.fakes.stored_request import stored_request

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

GOAL_USABLE_S, GOAL_UPDATE_MS, GOAL_TASK_MS = 1.0, 300.0, 100.0
GOAL_SLOW_S, GOAL_REQUESTS = 5.0, 15
_SLOW = {"offline": False, "latency": 400, "downloadThroughput": 50_000, "uploadThroughput": 50_000}
"""Milliseconds, and bytes per second."""
_NOW = datetime(2026, 1, 2, tzinfo=UTC)
_AT_ONCE = 500
_PAUSE_S = 0.7
_WATCHED = """
globalThis.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((each) => each.duration)))
  .observe({type: "longtask", buffered: true});
const look = () => {
  if (document.querySelectorAll(".chart svg").length >= 2 && document.querySelector(".figures-row"))
    globalThis.usable ??= performance.now();
  else requestAnimationFrame(look);
};
document.addEventListener("DOMContentLoaded", look);
"""
_SEEN = """(wanted) => new Promise((resolve) => {
  const look = () => document.querySelector(".loop-whole")?.textContent.includes(wanted)
    ? resolve(Date.now()) : requestAnimationFrame(look);
  look();
})"""
_SCROLLED = """async () => {
  const box = document.querySelector(".long") ?? document.scrollingElement;
  for (let share = 0; share <= 1; share += 0.02) {
    box.scrollTop = share * box.scrollHeight;
    await new Promise(requestAnimationFrame);
  }
}"""
_PARTS = ("/iterations", "/trajectories?iteration=all", "/trajectories", "/held-out", "/events", "/request", "")


def rows(run_id: str, iterations: int, trajectories: int) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Build the rows of a running run that no worker drives."""
    per_iteration = max(1, trajectories // iterations)
    return [
        (Run, [_run(run_id, iterations)]),
        (Iteration, [_iteration(run_id, number) for number in range(iterations + 1)]),
        (Evaluation, [_evaluation(run_id, number) for number in range(0, iterations + 1, 4)]),
        (Event, [_event(run_id, seq) for seq in range(1, 4 * iterations)]),
        (Trajectory, [_trajectory(run_id, number, number // per_iteration + 1) for number in range(trajectories)]),
    ]


def _run(run_id: str, iterations: int) -> dict[str, Any]:
    evaluation = {"every": 4, "scenarios": 24, "test_scenarios": 64, "samples": 2}
    shape = {"groups_per_iteration": 2, "rollouts_per_group": 5, "evaluation": evaluation, "budget": None}
    return {
        "id": run_id,
        "status": "running",
        "request": stored_request(**shape),
        "environment": "email_search",
        "judge": "reference",
        "backend": "embedded",
        "model_project": "bench",
        "model_name": run_id,
        "base_model": "learnloop/tiny",
        "owner": "nobody",
        "lease_until": datetime(2100, 1, 1, tzinfo=UTC),
        "iterations_total": 10 * iterations,
        "next_iteration": iterations + 1,
        "event_seq": 4 * iterations - 1,
        "step": iterations,
        "best_step": iterations,
        "best_success": 0.5,
        "started_at": _NOW,
    }


def _iteration(run_id: str, number: int) -> dict[str, Any]:
    names = ("loss", "policy_loss", "entropy", "kl_div", "grad_norm", "learning_rate", "clipped_share", "probs_corr")
    phases = ("rollout_s", "judge_s", "train_s", "reflect_s", "evaluate_s", "total_s", "completion_tokens")
    level = number / 1000
    return {
        "run_id": run_id,
        "iteration": number,
        "step": number,
        "best_step": number,
        "reward_mean": level,
        "reward_median": level,
        "reward_min": level - 1,
        "reward_max": level + 1,
        "reward_count": 10,
        "success": 0.5,
        "malformed": 0.1,
        "failed_rollouts": 0,
        "skipped_groups": {"no_signal": number % 3},
        "no_signal": None,
        "train_metrics": dict.fromkeys(names, 0.1 + number % 7 / 10),
        "timing": dict.fromkeys(phases, 1.0 + number % 5),
    }


def _evaluation(run_id: str, number: int) -> dict[str, Any]:
    key = {"run_id": run_id, "iteration": number, "split": "validation", "mode": "sampled", "step": number}
    figures = {"success": 0.2 + number % 50 / 100, "mean_reward": 0.1, "malformed": 0.0, "turns": 3.0}
    return key | {"scenarios": 24} | figures


def _event(run_id: str, seq: int) -> dict[str, Any]:
    key = {"run_id": run_id, "seq": seq, "type": EventType.PHASE_COMPLETED, "iteration": seq // 4}
    return key | {"actor": "worker:bench", "data": {"phase": "rollout"}}


def _trajectory(run_id: str, number: int, iteration: int) -> dict[str, Any]:
    messages = [
        {"role": "user", "content": "On which day is the launch?"},
        {"role": "assistant", "content": "2 October"},
    ]
    return {
        "id": f"{run_id}-{number}",
        "run_id": run_id,
        "kind": "train",
        "iteration": iteration,
        "split": "train",
        "mode": "sampled",
        "model": "bench/agent",
        "scenario_id": f"train.{number // 5}",
        "scenario": {"task": {"question": f"On which day is launch {number // 5}?"}, "reference": {"answer": "that"}},
        "messages": messages,
        "tools": [],
        "outcome": {"finish": "answered", "turns": 3},
        "score": 0.5,
        "score_parts": {},
        "reward": number % 13 / 10,
        "reward_parts": {},
        "advantage": 0.1,
        "success": number % 2 == 0,
        "turns": 3,
        "prompt_tokens": 700,
        "completion_tokens": 60,
        "seconds": 1.0,
        "started_at": _NOW,
    }


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Start everything, insert the rows, and measure."""
    from playwright.async_api import async_playwright

    async with migrated(directory) as store, async_playwright() as playwright:
        run_id = str(ULID())
        await _seed(store.database, run_id, options)
        with ExitStack() as stack:
            base = await asyncio.to_thread(_serve, stack, directory, store.url)
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = await browser.new_page(viewport={"width": 1280, "height": 900})
            try:
                return await _look(browser, page, store.database, f"{base}/ui/runs/{run_id}", run_id, options)
            finally:
                await browser.close()


def _serve(stack: ExitStack, directory: Path, database_url: str) -> str:
    """Start a service that drives nothing; return its base URL."""
    settings = {
        "DATABASE_URL": database_url,
        "LEARNLOOP_ENGINE_URL": "http://127.0.0.1:9",
        "LEARNLOOP_MAX_CONCURRENT_RUNS": "0",
    }
    url: str = stack.enter_context(serving(directory / "service", free_port(), settings)).client.url
    return url


async def _seed(database: Database, run_id: str, options: argparse.Namespace) -> None:
    for table, values in rows(run_id, options.iterations, options.trajectories):
        for start in range(0, len(values), _AT_ONCE):
            async with database.begin() as tx:
                await tx.execute(insert(table), values[start : start + _AT_ONCE])


async def _look(
    browser: "Browser", page: "Page", database: Database, address: str, run_id: str, options: argparse.Namespace
) -> dict[str, Any]:
    await page.add_init_script(_WATCHED)
    usable = [await _opened(page, address) for _ in range(3)]
    await page.locator(".connection", has_text="live").wait_for()
    waits = []
    for number in range(options.iterations + 1, options.iterations + 1 + options.events):
        waits.append(await _update(page, database, run_id, number))
        await asyncio.sleep(_PAUSE_S)
    longest = {"while it is opened and updated": await _longest(page)}
    await browser.start_tracing(page=page, categories=["toplevel", "disabled-by-default-devtools.timeline"])
    for part in (*_PARTS, *_PARTS):
        await Visit(page).go(f"/runs/{run_id}{part}")
        await page.evaluate(_SCROLLED)
        longest[part or "/"] = max(longest.get(part or "/", 0), await _longest(page))
    busiest = _busiest_ms(json.loads(await browser.stop_tracing()))
    return {
        "iterations": options.iterations,
        "trajectories": options.trajectories,
        **await _first_load(browser, address.partition("/ui")[0] + "/ui", ".run", ""),
        **await _first_load(browser, address, ".chart svg", "run_"),
        "usable_cold_s": round(usable[0], 2),
        "usable_s": round(statistics.median(usable), 2),
        "update_p50_ms": round(statistics.median(waits)),
        "update_max_ms": round(max(waits)),
        "longest_task_cpu_ms": round(busiest),
        "longest_task_ms": max(longest.values()),
        "longest_tasks_ms": {part: took for part, took in longest.items() if took},
    }


async def _longest(page: "Page") -> int:
    """Return the longest task since the last call in milliseconds, or 0 if none took 50."""
    took: list[float] = await page.evaluate("() => tasks.splice(0)")
    return round(max(took, default=0))


def _busiest_ms(trace: Any) -> float:
    """Return the largest CPU time of one task of the page's main thread, in milliseconds."""
    events = trace["traceEvents"]
    mains = {(event["pid"], event["tid"]) for event in events if event.get("args", {}).get("name") == "CrRendererMain"}
    tasks = [event for event in events if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) in mains]
    return max((event.get("tdur", event.get("dur", 0)) for event in tasks), default=0) / 1000


async def _opened(page: "Page", address: str) -> float:
    """Return the seconds until the run's page is usable."""
    await page.goto("about:blank")
    await page.goto(address)
    await page.wait_for_function("() => globalThis.usable !== undefined")
    usable: float = await page.evaluate("() => usable")
    return usable / 1000


async def _first_load(browser: "Browser", address: str, content: str, prefix: str) -> dict[str, Any]:
    """Return the seconds until a page's content is there, over a slow connection and without a cache, and the number of
    requests and the bytes that this takes."""
    page = await browser.new_page()
    network = await page.context.new_cdp_session(page)
    await network.send("Network.enable")
    await network.send("Network.emulateNetworkConditions", _SLOW)
    sizes: list[int] = []
    network.on("Network.loadingFinished", lambda finished: sizes.append(int(finished["encodedDataLength"])))
    begun = time.perf_counter()
    await page.goto(address)
    await page.locator(content).first.wait_for()
    took = time.perf_counter() - begun
    await page.close()
    return {
        f"{prefix}slow_first_load_s": round(took, 2),
        f"{prefix}first_load_requests": len(sizes),
        f"{prefix}first_load_bytes": sum(sizes),
    }


async def _update(page: "Page", database: Database, run_id: str, number: int) -> float:
    """Return the milliseconds from the commit of an iteration until the page shows it."""
    appearance = asyncio.create_task(page.evaluate(_SEEN, f"{number} of "))
    await asyncio.sleep(0.1)
    rewards = {"mean": number / 1000, "median": 0.1, "min": -1.0, "max": 1.0, "count": 10}
    data = {"iteration": number, "status": "running", "rewards": rewards, "success": 0.5, "step": number}
    async with database.begin() as tx:
        await tx.execute(insert(Iteration), [_iteration(run_id, number)])
        await tx.execute(update(Run).where(Run.id == run_id).values(next_iteration=number + 1))
        await append(tx, run_id, EventType.ITERATION_COMPLETED, "worker:bench", data, iteration=number)
    committed = time.time()
    at: float = await asyncio.wait_for(appearance, 30)
    return max(0.0, at - 1000 * committed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=30)
    options = parser.parse_args()
    if CHROMIUM is None:
        sys.exit("no Chromium on PATH")
    with tempfile.TemporaryDirectory(prefix="learnloop-bench-") as directory:
        figures = asyncio.run(measure(Path(directory), options))
    print(json.dumps(figures, indent=2))
    goals = {
        "usable_s": GOAL_USABLE_S,
        "update_p50_ms": GOAL_UPDATE_MS,
        "longest_task_cpu_ms": GOAL_TASK_MS,
        "slow_first_load_s": GOAL_SLOW_S,
        "run_slow_first_load_s": GOAL_SLOW_S,
        "first_load_requests": GOAL_REQUESTS,
    }
    sys.exit(any(figures[name] > goal for name, goal in goals.items()))


if __name__ == "__main__":
    main()
