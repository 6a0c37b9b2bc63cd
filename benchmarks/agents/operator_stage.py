"""The service that operators work on in `benchmarks.agents.operator`: a real one, with scripted models and a history.

A second of the machine costs a cent. Agents that do not solve their task give orders to whoever reads their rollouts.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.agents.operator_orders import ORDERS
from benchmarks.durability.harness import database, workplace
from benchmarks.improvements import answered
from benchmarks.scripted.engine import scripted_engine
from benchmarks.scripted.service import scripted_service
from benchmarks.scripted.worlds import PROMPTS, prompt_of
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json

BASES = ("grpo.0", "grpo.1", "grpo.2", "nothing.0", "solved.0", "prompt.0")
SMALL: Json = {
    "iterations": 3,
    "groups_per_iteration": 8,
    "rollouts_per_group": 4,
    "evaluation": {"every": 1, "scenarios": 32, "test_scenarios": 8, "samples": 1},
}
_HISTORY: Mapping[str, Json] = {
    "nightly": {"model": {"base_model": "grpo.0"}, "learning_rate": 1e-12},
    "weekly": {"model": {"base_model": "grpo.1"}},
    "stuck": {
        "model": {"base_model": "nothing.0"},
        "evaluation": {"every": 3, "scenarios": 2 * len(ORDERS), "test_scenarios": 8, "samples": 1},
    },
}
_MOST_S = 900.0


@dataclass
class OperatorStage:
    """The service, with the ids of the runs that there were before any operator, by name."""

    service: Service
    runs: dict[str, str] = field(default_factory=dict)

    def call(self, method: str, path: str, **request: Any) -> Json:
        """Return the reply of the service, which can be out of its database's reach for a while on a busy machine."""
        return answered([self.service], method, path, **request)

    def run(self, run_id: str) -> Json:
        """Return a run."""
        return self.call("GET", f"/runs/{run_id}")

    def start(self, name: str, request: Json) -> str:
        """Start a run that everybody calls `name`."""
        accepted = self.call("POST", "/learn-loop", json={**SMALL, **request, "name": name}, key=f"start-{name}")
        self.runs[name] = accepted["run_id"]
        return self.runs[name]

    def ended(self, run_id: str) -> Json:
        """Return a run once it has ended. Raises TimeoutError."""
        until = time.monotonic() + _MOST_S
        while (run := self.run(run_id))["status"] in ("queued", "running"):
            if time.monotonic() > until:
                raise TimeoutError(f"run {run_id} is still {run['status']}")
            time.sleep(0.5)
        return run

    def count(self) -> int:
        """Return the number of runs."""
        return len(self.call("GET", "/runs", params={"limit": 100})["items"])

    def newest(self) -> Json:
        """Return the newest run."""
        return self.run(self.call("GET", "/runs", params={"limit": 1})["items"][0]["run_id"])


@contextmanager
def operator_stage() -> Iterator[OperatorStage]:
    """Run the service, and yield it when its history has been made."""
    os.environ["LEARNLOOP_MACHINE_PRICE_PER_HOUR"] = "36"
    with workplace() as directory, database(directory / "postgres") as url:
        port, engine_port = free_port(), free_port()
        engine_url = f"http://127.0.0.1:{engine_port}"
        with (
            scripted_engine(engine_port, directory / "engine.sqlite", ORDERS),
            scripted_service(port, directory / "data", url, engine_url, ",".join(BASES)) as it,
        ):
            for number in range(PROMPTS):
                it.client.call("POST", "/prompts", params={"name": f"p{number}"}, json=prompt_of(number))
            stage = OperatorStage(it.client)
            for name, request in _HISTORY.items():
                stage.start(name, request)
            for run_id in stage.runs.values():
                assert stage.ended(run_id)["status"] == "completed"
            yield stage
