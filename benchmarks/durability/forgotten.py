"""Measure how long a run stalls when the network forgets its connections to the engine.

    python -m benchmarks.durability.forgotten

A service trains on an engine behind a network that forgets all connections in the middle of a run: both sides stay
open, and nothing arrives. Prints the seconds until the run progresses, and what the run said meanwhile.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from benchmarks import processes
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json
from tests.fakes.forgetful_network import forgetful_network

_MOST_S = 420.0
_LEARN_LOOP: Json = {
    "environment": {"name": "email_search"},
    "iterations": 3,
    "groups_per_iteration": 4,
    "rollouts_per_group": 4,
    "evaluation": {"every": 100, "scenarios": 4},
}


async def forgotten(directory: Path) -> Json:
    """Forget the connections between a service and its engine in the middle of an iteration's rollouts."""
    port = free_port()
    (directory / "engine").mkdir()
    with processes.engine(directory / "engine") as engine_url:
        engine_port = httpx.URL(engine_url).port
        assert engine_port
        async with (
            forgetful_network(engine_port) as network,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http,
        ):
            with processes.service(directory, port, LEARNLOOP_ENGINE_URL=network.url) as child:
                with Service(f"http://127.0.0.1:{port}") as client:
                    await asyncio.to_thread(processes.wait_for, child, processes.answers(client), most_s=_MOST_S)
                run = f"/runs/{(await http.post('/learn-loop', json=_LEARN_LOOP)).raise_for_status().json()['run_id']}"
                await _until(
                    http, run, lambda run_state: run_state["progress"] and run_state["progress"]["iteration"] == 1
                )
                before = (await http.get(run)).json()["progress"]
                network.forget()
                began, carried = time.monotonic(), network.carried
                run_state = await _until(
                    http,
                    run,
                    lambda run_state: (
                        (run_state["progress"] != before and network.carried - carried > 20_000)
                        or run_state["status"] in ("failed", "completed")
                    ),
                )
                return {
                    "seconds": round(time.monotonic() - began, 1),
                    "status": run_state["status"],
                    "error": run_state["error"],
                    "from": before,
                    "to": run_state["progress"],
                }


async def _until(http: httpx.AsyncClient, path: str, holds: Callable[[Json], object]) -> Json:
    async with asyncio.timeout(_MOST_S):
        while not holds(document := (await http.get(path)).json()):
            await asyncio.sleep(0.2)
        return document


def main() -> None:
    """Print the figures."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        machine = processes.machine()
        figures = asyncio.run(forgotten(Path(directory)))
    sys.stdout.write(json.dumps(machine | figures) + "\n")


if __name__ == "__main__":
    main()
