"""A short run of the tiny model on a real engine, and the diagnoses of its iterations."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count

from environment.email_search.environment import SyntheticEmailSearch
from judges.reference import ReferenceJudge
from training.backends.base import ModelSpec, Policy
from training.backends.embedded import EmbeddedBackend
from training.diagnosis.diagnose import diagnose
from training.diagnosis.diagnosis import Diagnosis, DiagnosisSettings
from training.diagnosis.examine import examine
from training.diagnosis.facts import Facts
from training.learn_loop import learn_loop
from training.tuning import Tuning
from training.types import EvaluationConfig, RunConfig

TINY = "learnloop/tiny"
CONFIG = RunConfig(
    iterations=3,
    groups_per_iteration=8,
    rollouts_per_group=4,
    warmup_iterations=1,
    evaluation=EvaluationConfig(every=3, scenarios=4, samples=1, test_scenarios=0),
)
SMALL = replace(CONFIG, iterations=2, groups_per_iteration=3, max_turns=4)
_names = count()


async def examined(
    backend: EmbeddedBackend,
    config: RunConfig,
    wrap: Callable[[Policy], Policy] = lambda policy: policy,
    tuning: Tuning | None = None,
) -> list[Facts]:
    """Return the facts of a run's iterations."""
    spec = ModelSpec("diagnosis", f"agent-{next(_names)}", TINY, tuning)
    policy = wrap(await backend.register(spec))
    environment, facts = SyntheticEmailSearch(), list[Facts]()
    async with aclosing(learn_loop(config, environment, ReferenceJudge(), policy)) as results:
        async for result in results:
            facts.append(await examine(result, config, policy, environment))
            assert len(str(facts[-1].dump())) < 4_096
    return facts


def named(facts: Sequence[Facts], config: RunConfig) -> list[Diagnosis]:
    """Return the diagnoses of a run with these facts."""
    return diagnose(facts, DiagnosisSettings(config, TINY))
