"""Which rollouts succeeded by the environment's own check, whatever the run's judge says.

Some environments have a default judge that computes its scores without a model. It costs nothing to ask it as well, and
a judge that orders the rollouts differently is worth a look.
"""

from collections.abc import Iterable, Mapping

from learnloop_service.environment.base import Environment
from learnloop_service.judges import registry
from learnloop_service.judges.base import Candidate, JudgeServices, checked
from learnloop_service.training.rollout.histories import transcript_of
from learnloop_service.training.types import IterationResult, ScoredRollout

TrueSuccess = Mapping[str, bool]
"""Whether a rollout succeeded by the check, by its id. Rollouts that the check cannot score are left out."""


async def true_success(result: IterationResult, environment: Environment) -> TrueSuccess:
    """Return the check's verdicts on an iteration's training rollouts; empty if the environment has no such check."""
    if not registry.traits(environment.default_judge).checks:
        return {}
    check = registry.build(environment.default_judge, {}, JudgeServices(rubric=environment.rubric))
    successes: dict[str, bool] = {}
    for group in result.groups:
        rollouts = [scored.rollout for scored in _scored(group.rollouts)]
        candidates = [Candidate(rollout.id, rollout.outcome, transcript_of(rollout.trajectory)) for rollout in rollouts]
        judgement = await checked(check, group.scenario, candidates)
        for rollout, score in zip(rollouts, judgement.scores, strict=True):
            if score.value is not None:
                successes[rollout.id] = environment.success(rollout.outcome, score.value)
    return successes


def _scored(rollouts: Iterable[ScoredRollout]) -> list[ScoredRollout]:
    return [rollout for rollout in rollouts if rollout.reward is not None]
