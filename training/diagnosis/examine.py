"""Examines an iteration: the facts of its result, and those that the policy reports."""

from dataclasses import replace

import structlog

from environment.base import Environment, Solvable
from training.backends.base import BackendRefused, BackendUnavailable, Policy, ReportingPolicy
from training.diagnosis.collect import facts_of
from training.diagnosis.facts import Facts
from training.diagnosis.reread import readings_of
from training.types import IterationResult, RunConfig

log = structlog.get_logger(__name__)


async def examine(result: IterationResult, config: RunConfig, policy: Policy, environment: Environment) -> Facts:
    """Return the facts of an iteration that has just ended. What the policy does not report now stays unknown."""
    facts = replace(facts_of(result, config), has_oracle=isinstance(environment, Solvable))
    if not isinstance(policy, ReportingPolicy):
        return facts
    try:
        found = await policy.weights_sha256(result.step)
    except (BackendUnavailable, BackendRefused, ValueError) as error:
        log.warning("the policy could not be examined", iteration=result.iteration, error=str(error))
        found = None
    return replace(facts, base_model=policy.base_model, weights_sha256=found, readings=readings_of(result))
