"""Improve agents in worlds where it is known what helps, and see at which kind of change it stops.

    python -m benchmarks.learning.improve_worlds [--agents 20] [--first 0] [--worlds solved prompt ...]

The whole service works on them, in a process of its own; only sampling and training are scripted
(benchmarks/scripted/worlds.py). 64 validation tasks, six prompts, a target of 80%. The right kind of change must have
reached it in 17 of 20 agents of each world, and in 113 of 120 in all. By the rows, no test task may be done before all
is decided, and none that is not of the final evaluation.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg

from benchmarks import processes
from benchmarks.durability.harness import database, workplace
from benchmarks.improvements import improved
from benchmarks.scripted.engine import scripted_engine
from benchmarks.scripted.service import scripted_service
from benchmarks.scripted.worlds import PROMPTS, WORLDS, prompt_of, request_for
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.environment.json_type import Json

_SIMULATED = [name for name in WORLDS if name != "everything"]
_LEAST = {"each world": 17 / 20, "all worlds": 113 / 120}
_AT_ONCE = 3
"""Number of improvements at the same time."""
_TESTED = """
SELECT count(*), count(*) FILTER (WHERE improvement.id IS NULL OR trajectory.started_at < (
    SELECT max(decided_at) FROM candidate WHERE improvement_id = improvement.id))
FROM trajectory
LEFT JOIN improvement ON improvement.final -> 'evaluation_ids' ? trajectory.evaluation_id
WHERE trajectory.split = 'test'
"""
"""Selects the number of rollouts of test tasks, and of those that are not of a final evaluation, or too early."""


def climbed(service: Service, base: str) -> tuple[str, str | None, str]:
    """Improve an agent. Return its world, the kind of change by which it reached the target, and what came of it."""
    improvement = improved([service], request_for(base))
    assert improvement["status"] != "failed", improvement["reason"]
    champion = improvement["tried"][improvement["champion"]]
    rung = champion["rung"] if improvement["status"] == "reached" else None
    grpo = [row["reason"] for row in improvement["tried"] if row["rung"] == "grpo"]
    return base.rpartition(".")[0], rung, f"{base}: {improvement['sentence']} {grpo}"


def measure(worlds: Sequence[str], numbers: Sequence[int]) -> dict[str, Json]:
    """Return at which kinds of change the improvements of each world's agents with these numbers stopped."""
    bases = [f"{world}.{number}" for number in numbers for world in worlds]
    with workplace() as directory, database(directory / "postgres") as url:
        port, engine_port = free_port(), free_port()
        engine_url = f"http://127.0.0.1:{engine_port}"
        with (
            scripted_engine(engine_port, directory / "engine.sqlite"),
            scripted_service(port, directory / "data", url, engine_url, ",".join(bases)) as it,
            ThreadPoolExecutor(_AT_ONCE) as pool,
        ):
            for number in range(PROMPTS):
                it.client.call("POST", "/prompts", params={"name": f"p{number}"}, json=prompt_of(number))
            ended = list(pool.map(partial(climbed, it.client), bases))
            with psycopg.connect(url) as connection:
                [(tested, early)] = connection.execute(_TESTED).fetchall()
    ends = Counter((world, rung) for world, rung, _ in ended)
    stops = {world: {str(rung): count for (of, rung), count in ends.items() if of == world} for world in worlds}
    right = {world: ends[world, WORLDS[world].rung] for world in worlds}
    return {
        "agents": len(numbers),
        "stops": stops,
        "right": right,
        "wrong": [text for world, rung, text in ended if rung != WORLDS[world].rung],
        "test_rollouts": tested,
        "too_early": early,
    }


def main() -> None:
    """Print the figures; fail if improvements stop too often at another kind of change, or do test tasks too early."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=20, help="of each world")
    parser.add_argument("--first", type=int, default=0, help="number of the first agent, for parts on several machines")
    parser.add_argument("--worlds", nargs="+", choices=_SIMULATED, default=_SIMULATED)
    options = parser.parse_args()
    machine = processes.machine()
    figures = measure(options.worlds, range(options.first, options.first + options.agents))
    print(json.dumps({"machine": machine, **figures}, indent=2))
    shares = [count / options.agents for count in figures["right"].values()]
    if figures["too_early"]:
        raise SystemExit("test tasks were done before all was decided")
    if min(shares) < _LEAST["each world"] or sum(shares) / len(shares) < _LEAST["all worlds"]:
        raise SystemExit("improvements stop too often at another kind of change")


if __name__ == "__main__":
    main()
