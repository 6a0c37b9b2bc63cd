"""Kill two services and the engine with SIGKILL again and again while they improve an agent.

    python -m benchmarks.durability.improvement_kills [--kills 200]

Two services, each with its own worker and watcher, share a Postgres that is not killed and a scripted engine
(benchmarks/scripted), which is killed as well. The same agent is improved once undisturbed, in a world in which every
kind of change helps, and then again and again until there were that many kills. All improvements must try the same
candidates with the same shares of the error, decide the same, and end with the same champion, test figures and
sentence (its prices aside). Every evaluation and run must be one that an improvement waited for, and no rollout of a
run's evaluations may be saved twice.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psycopg

from benchmarks import processes
from benchmarks.durability.harness import Killer, database, judge, workplace
from benchmarks.improvements import answered, improved
from benchmarks.scripted.engine import scripted_engine
from benchmarks.scripted.service import scripted_service
from benchmarks.scripted.worlds import PROMPTS, prompt_of, request_for
from learnloop_service.app.cli.client import Service
from learnloop_service.app.cli.service_process import free_port
from learnloop_service.app.improvements.summary import sentence
from learnloop_service.app.schemas.improvements import ImprovementOut, PriceOut
from learnloop_service.environment.json_type import Json

_AGENT = "everything.4"
"""It has a prompt that is accepted, one that the gate refuses, and some that do not pass their screening."""
_SERVICES = 2
_CALL_S = 10.0
_SAME = ("number", "rung", "state", "author", "reason", "error_share", "screening", "evidence", "success", "test")
_FREE = PriceOut(minutes=1.0, tokens=0, usd=None)
_JOBS = "SELECT id FROM evaluation_job UNION ALL SELECT id FROM run"
_WAITED_FOR = """
SELECT unnest(array_remove(ARRAY[screening_id, gate_id, run_id], NULL)) FROM candidate
UNION ALL SELECT pilot ->> 'evaluation_id' FROM improvement
UNION ALL SELECT jsonb_array_elements_text(final -> 'evaluation_ids') FROM improvement
"""
_TWICE = """
SELECT count(*) - count(DISTINCT (run_id, iteration, split, mode, scenario_id))
FROM trajectory WHERE kind = 'evaluation' AND run_id IS NOT NULL
"""
"""Selects the number of rollouts of runs' evaluations, which try a task once, that were made again."""


def account(improvement: Json) -> Json:
    """Return what must not depend on kills."""
    shown = ImprovementOut.model_validate(improvement)
    shown.price = _FREE
    for candidate in shown.tried:
        candidate.price = _FREE
    tried = [{name: row[name] for name in _SAME} for row in improvement["tried"]]
    for row, candidate in zip(tried, shown.tried, strict=True):
        row["author"] = candidate.author.replace(shown.id, "ID")
        row["step"] = candidate.model.partition("@")[2]
    return {
        "status": improvement["status"],
        "champion": improvement["champion"],
        "tried": tried,
        "sentence": sentence(shown),
    }


def rows_of(url: str) -> dict[str, Json]:
    """Return what the rows say was done twice, or for nothing."""
    with psycopg.connect(url) as connection:

        def values(query: str) -> list[Json]:
            return [value for (value,) in connection.execute(query.encode()).fetchall()]

        jobs, waited_for, twice = values(_JOBS), values(_WAITED_FOR), values(_TWICE)
    return {
        "jobs": len(jobs),
        "jobs_of_nobody": len(set(jobs) - set(waited_for)),
        "jobs_waited_for_twice": len(waited_for) - len(set(waited_for)),
        "rollouts_twice": twice[0],
    }


async def _under_kills(killer: Killer, services: Sequence[Service], kills: int) -> list[Json]:
    """Improve the agent again and again until there were that many kills; return the accounts."""
    killing, accounts = asyncio.create_task(killer.kill(kills)), list[Json]()
    while not killing.done():
        accounts.append(account(await asyncio.to_thread(improved, services, request_for(_AGENT))))
        print(f"{killer.kills} kills, {len(accounts)} improvements", flush=True)
    await killing
    return accounts


async def measure(directory: Path, url: str, kills: int, chance: random.Random) -> dict[str, Json]:
    """Return the figures."""
    ports, engine_port = [free_port() for _ in range(_SERVICES)], free_port()
    engine_url = f"http://127.0.0.1:{engine_port}"
    serve = [partial(scripted_service, port, directory / str(port), url, engine_url, _AGENT) for port in ports]
    killer = Killer([*serve, partial(scripted_engine, engine_port, directory / "engine.sqlite")], chance)
    with ExitStack() as stack:
        stack.callback(killer.close)
        services = [stack.enter_context(Service(f"http://127.0.0.1:{port}", timeout_s=_CALL_S)) for port in ports]
        await killer.start()
        for number in range(PROMPTS):
            answered(services, "POST", "/prompts", params={"name": f"p{number}"}, json=prompt_of(number))
        began = time.monotonic()
        expected = account(await asyncio.to_thread(improved, services, request_for(_AGENT)))
        seconds = time.monotonic() - began
        accounts = await _under_kills(killer, services, kills)
        figures = rows_of(url)
    others = [other for other in accounts if other != expected]
    return {
        "kills": killer.kills,
        "improvements_under_kills": len(accounts),
        "others": len(others),
        "undisturbed_s": round(seconds, 1),
        "expected": expected,
        "first_other": others[:1],
        **figures,
    }


_MUST_BE: dict[str, Json] = {"others": 0, "jobs_of_nobody": 0, "jobs_waited_for_twice": 0, "rollouts_twice": 0}


def main() -> None:
    """Print the figures; fail if a kill changed anything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    machine = processes.machine()
    with workplace() as directory, database(directory / "postgres") as url:
        figures = asyncio.run(measure(directory, url, options.kills, random.Random(options.seed)))
    judge({"machine": machine, **figures}, _MUST_BE)


if __name__ == "__main__":
    main()
