"""A short run of the tiny model on a real engine, and the diagnoses of its iterations."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.learning import examined_run
from benchmarks.learning.examined_run import TINY, Plan
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import Policy
from learnloop_service.training.backends.embedded import EmbeddedBackend
from learnloop_service.training.diagnosis.diagnose import diagnose
from learnloop_service.training.diagnosis.diagnosis import Diagnosis, DiagnosisSettings
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.tuning import Tuning
from learnloop_service.training.types import EvaluationConfig, RunConfig

CONFIG = RunConfig(
    iterations=3,
    groups_per_iteration=8,
    rollouts_per_group=4,
    warmup_iterations=1,
    evaluation=EvaluationConfig(every=3, scenarios=4, samples=1, test_scenarios=0),
)
SMALL = replace(CONFIG, iterations=2, groups_per_iteration=3, max_turns=4)


async def examined(
    backend: EmbeddedBackend,
    config: RunConfig,
    wrap: Callable[[Policy], Policy] = lambda policy: policy,
    tuning: Tuning | None = None,
) -> list[Facts]:
    """Return the facts of a run's iterations."""
    plan = Plan(config, tuning=tuning)
    facts = await examined_run.examined(backend, plan, SyntheticEmailSearch(), ReferenceJudge(), wrap)
    longest = max(len(str(of_iteration.dump())) for of_iteration in facts)
    assert longest < 4_352, longest  # a run's page reads those of all iterations
    return facts


def named(facts: Sequence[Facts], config: RunConfig) -> list[Diagnosis]:
    """Return the diagnoses of a run with these facts."""
    return diagnose(facts, DiagnosisSettings(config, TINY))
