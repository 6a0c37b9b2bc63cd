"""Measure the included base model before any learning: held-out success on both environments.

python -m benchmarks.learning.tiny_base --scenarios 128
"""

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

from benchmarks import processes
from learnloop_sales.environment import SalesEmail
from learnloop_service.environment.base import Environment
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.base import Candidate
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import Endpoint
from learnloop_service.training.engine.__main__ import TINY_NAME
from learnloop_service.training.rollout.chat import open_chat
from learnloop_service.training.rollout.rollout import RolloutLimits, rollout
from learnloop_service.training.types import Rollout

_CONCURRENCY = 64


async def success(environment: Environment, endpoint: Endpoint, scenarios: int, temperature: float) -> float:
    """Return the share of test scenarios whose single try did the whole job."""
    gate = asyncio.Semaphore(_CONCURRENCY)
    async with open_chat(endpoint, _CONCURRENCY) as chat:

        async def attempt(number: int) -> Rollout:
            async with gate:
                limits = RolloutLimits(temperature=temperature)
                return await rollout(environment, tasks[number], chat, limits, id=str(number), seed=number)

        tasks = environment.scenarios("test", scenarios, 0)
        tries = await asyncio.gather(*map(attempt, range(scenarios)))
    return sum([await _succeeded(environment, one_try) for one_try in tries]) / scenarios


async def _succeeded(environment: Environment, tried: Rollout) -> bool:
    """Apply the environment's rule, with a score from the reference answer where there is one."""
    attempt = Candidate(tried.id, tried.outcome, ())
    [score] = (await ReferenceJudge().judge(tried.scenario, [attempt])).scores
    return tried.error is None and environment.success(tried.outcome, 1.0 if score.value is None else score.value)


async def measure(base_url: str, scenarios: int) -> dict[str, dict[str, float]]:
    """Return success by environment and mode."""
    endpoint = Endpoint(base_url, "unused", TINY_NAME)
    environments: list[Environment] = [SyntheticEmailSearch(), SalesEmail()]
    return {
        environment.name: {
            "sampled": await success(environment, endpoint, scenarios, 1.0),
            "greedy": await success(environment, endpoint, scenarios, 0.0),
        }
        for environment in environments
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory, processes.engine(Path(directory)) as base_url:
        figures = asyncio.run(measure(base_url, options.scenarios))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
