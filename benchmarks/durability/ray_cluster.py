"""Run the whole service over an engine on a Ray cluster, and kill the cluster's nodes.

    python -m benchmarks.durability.ray_cluster

Starts three nodes on this machine: a head that computes nothing, and two with two CPUs each for two samplers and a
trainer. A node with a sampler and no trainer is killed during rollouts, and the node with the trainer during training;
a new node joins after each kill. Then all nodes are killed, and a new cluster with a new engine continues from disk.
The run must end with the weights and rollouts of an undisturbed run on an ordinary engine. Prints the seconds from each
kill to the next finished rollout or step. Needs the extra `ray`.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks import processes
from benchmarks.durability.harness import Watched, database, ended, judge, undisturbed, weights, workplace
from benchmarks.durability.kills import RUN, Run, kept_rollouts, saved_rollouts, where
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json
from tests.fakes.ray_cluster import ENVIRONMENT, Node, RayCluster

_MOST_S = 900.0


class Front:
    """The engine's front process."""

    def __init__(self, data_dir: Path, port: int, address: str) -> None:
        self._url = f"http://127.0.0.1:{port}"
        where = ["--data-dir", str(data_dir), "--port", str(port)]
        workers = ["--ray", address, "--samplers", "2", "--trainers", "1"]
        with (data_dir / "front.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "learnloop_service.training.engine",
                    *where,
                    *workers,
                    "--die-with-parent",
                    str(os.getpid()),
                ],
                stderr=log,
                env={**os.environ, **ENVIRONMENT},
            )

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers listed by `/health`, or none if it does not answer."""
        try:
            workers: list[dict[str, Any]] = httpx.get(f"{self._url}/health", timeout=5).json()["workers"]
        except (httpx.HTTPError, ValueError):
            return []
        return workers

    def up(self, count: int) -> bool:
        return sum(bool(worker["up"]) for worker in self.workers()) >= count

    def node_of(self, cluster: RayCluster, role: str, without: str | None = None) -> Node | None:
        """Return a node with a worker of that role and none of the role `without`."""
        nodes: dict[Node, set[str]] = {}
        for worker in self.workers():
            for node in cluster.nodes:
                if worker["up"] and node.runs(int(worker["place"].rpartition(" ")[2])):
                    nodes.setdefault(node, set()).update(worker["roles"])
        return next((node for node, roles in nodes.items() if role in roles and without not in roles), None)


@contextmanager
def front(data_dir: Path, port: int, address: str) -> Iterator[Front]:
    running = Front(data_dir, port, address)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _MOST_S
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not in {_MOST_S:.0f} s: {what}")
        time.sleep(0.1)


def disturbed(directory: Path, work: Run) -> dict[str, Json]:
    """Drive the run over the cluster, kill nodes, and return the figures."""
    data_dir, port, engine_port = directory / "killed", free_port(), free_port()
    data_dir.mkdir()
    (directory / "service").mkdir()
    seconds: dict[str, float] = {}
    finished_rollouts: set[str] = set()

    def phase(name: str) -> Json:
        def there(run: Json) -> bool:
            assert not ended(run), f"the run ended before it was {name}: {run['status']}, {run['error']}"
            return bool(run["progress"]["phase"] == name and run["progress"]["iteration"])

        run = watched.wait_until(there, _MOST_S)
        assert run is not None, f"the run is never at {name}"
        return run

    def goes_on(killed: str, before: Json, since: float) -> None:
        work.last = where(before)
        goes_on = watched.wait_until(lambda run: ended(run) or work.moved(run), _MOST_S)
        assert goes_on, f"the run does not go on after: {killed}"
        seconds[killed] = round(time.monotonic() - since, 1)
        print(f"{killed}: continues after {seconds[killed]} s", file=sys.stderr)

    with database(directory / "postgres") as url:
        service = Service(f"http://127.0.0.1:{port}", timeout_s=30)
        settings = {"DATABASE_URL": url, "LEARNLOOP_ENGINE_URL": f"http://127.0.0.1:{engine_port}"}
        with processes.service(directory / "service", port, **settings) as child:
            with RayCluster() as cluster, front(data_dir, engine_port, cluster.address) as engine:
                for _ in range(2):
                    cluster.add(2)
                until(lambda: engine.up(3), "all workers are up")
                processes.wait_for(child, processes.answers(service))
                watched = Watched(service, work.start(service))
                run = phase("rollout")
                node = engine.node_of(cluster, "samples", without="trains") or engine.node_of(cluster, "samples")
                assert node is not None
                finished_rollouts |= kept_rollouts(url)
                node.kill()
                goes_on("a node with a sampler", run, time.monotonic())
                cluster.add(2)
                until(lambda: engine.up(3), "a node that joins is used")
                run = phase("train")
                node = engine.node_of(cluster, "trains")
                assert node is not None
                finished_rollouts |= kept_rollouts(url)
                node.kill()
                since = time.monotonic()
                cluster.add(2)
                goes_on("the node with the trainer", run, since)
                run = phase("rollout")
                finished_rollouts |= kept_rollouts(url)
                for node in [cluster.head, *cluster.nodes]:
                    node.kill()
                since = time.monotonic()
                engine.process.wait(_MOST_S)
                seconds["the front ends without a head"] = round(time.monotonic() - since, 1)
            with RayCluster() as cluster, front(data_dir, engine_port, cluster.address):
                for _ in range(2):
                    cluster.add(2)
                seconds["until a new cluster is up"] = round(time.monotonic() - since, 1)
                goes_on("all nodes", run, since)
                last = watched.completed()
        return {
            "weights": weights(data_dir),
            "seconds": seconds,
            "rollouts": last["rollouts"],
            "finished_rollouts_seen_at_kills": len(finished_rollouts),
            "made_again": len(finished_rollouts - saved_rollouts(url)),
        }


def main() -> None:
    """Print the figures; fail if anything was lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=6)
    options = parser.parse_args()
    request = {**RUN, "iterations": options.iterations, "environment": {"name": "email_search"}}
    with workplace() as directory:
        machine = processes.machine()
        expected, calm_s = undisturbed(Run(request), directory / "undisturbed")
        figures = disturbed(directory, Run(request))
    figures = {"machine": machine, "undisturbed_s": round(calm_s, 1), "expected": expected["weights"], **figures}
    judge(figures, {"weights": expected["weights"], "made_again": 0})


if __name__ == "__main__":
    main()
