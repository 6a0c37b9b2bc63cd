"""Runs of the tiny base on an engine of their own, without a service: the facts that diagnoses are made from."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import processes
from learnloop_service.environment import registry as environments
from learnloop_service.environment.base import Environment
from learnloop_service.judges import registry as judges
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.training.backends.base import ModelSpec, Policy
from learnloop_service.training.backends.embedded import EmbeddedBackend, connect
from learnloop_service.training.diagnosis.examine import examine
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.tuning import Tuning
from learnloop_service.training.types import RunConfig

TINY = "learnloop/tiny"
_names = count()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is made of. `environment` and `judge` receive the usual ones and return those to use."""

    config: RunConfig = field(default_factory=RunConfig)
    kind: str = "email_search"
    environment: Callable[[Environment], Environment] = lambda usual: usual
    judge: Callable[[Judge], Judge] = lambda usual: usual
    tuning: Tuning | None = None


def facts_of_run(plan: Plan) -> list[Facts]:
    """Make the run on an engine with a data directory of its own, and return the facts of its iterations."""
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        data_dir = Path(directory)
        (data_dir / "engine").mkdir()
        with processes.engine(data_dir / "engine") as url:
            return asyncio.run(_run(plan, data_dir, url))


async def _run(plan: Plan, data_dir: Path, url: str) -> list[Facts]:
    backend = await connect(url, "none")
    another = partial(environments.build, plan.kind, {}, data_dir)
    try:
        with closing(another()) as usual:
            judge = judges.build(usual.default_judge, {}, JudgeServices(rubric=usual.rubric))
            return await examined(backend, plan, plan.environment(usual), plan.judge(judge))
    finally:
        await backend.close()


async def examined(
    backend: EmbeddedBackend,
    plan: Plan,
    environment: Environment,
    judge: Judge,
    wrap: Callable[[Policy], Policy] = lambda policy: policy,
) -> list[Facts]:
    """Return the facts of a run's iterations on that backend."""
    policy = wrap(await backend.register(ModelSpec("examined", f"agent-{next(_names)}", TINY, plan.tuning)))
    repeats = environments.traits(plan.kind).repeats
    facts: list[Facts] = []
    async with aclosing(learn_loop(plan.config, environment, judge, policy)) as results:
        async for result in results:
            facts.append(await examine(result, plan.config, policy, environment, repeats=repeats))
    return facts
