"""Examines an iteration: the facts of its result, and those that the policy reports."""

from dataclasses import replace

import structlog

from learnloop_service.environment.base import Environment, Reflective, Solvable
from learnloop_service.training.backends.base import BackendRefused, BackendUnavailable, Policy, ReportingPolicy
from learnloop_service.training.diagnosis.collect import facts_of
from learnloop_service.training.diagnosis.facts import Facts, Probe, Replay
from learnloop_service.training.diagnosis.replayed import replayed
from learnloop_service.training.diagnosis.reread import readings_of
from learnloop_service.training.diagnosis.true_success import TrueSuccess, true_success
from learnloop_service.training.prompt import Prompt
from learnloop_service.training.rollout.environment_calls import off_loop
from learnloop_service.training.types import IterationResult, RunConfig

_PROBED_FIRST, _PROBED_EVERY = 3, 4
"""The sampler is asked after each of the first iterations, and then after every few."""
_MOST_DEMONSTRATED = 2_000

log = structlog.get_logger(__name__)


async def examine(
    result: IterationResult,
    config: RunConfig,
    policy: Policy,
    environment: Environment,
    prompt: Prompt | None = None,
    *,
    repeats: bool,
) -> Facts:
    """Return the facts of an iteration that has just ended. What the policy does not report now stays unknown.

    `repeats` says that the environment promises to give equal tool calls equal results (environment/traits.py), and
    that the built-in loop made the rollouts, so that one of them can be replayed, with the run's `prompt`.
    """
    facts = facts_of(result, config, await _true_success(result, environment))
    facts = replace(
        facts,
        has_oracle=isinstance(environment, Solvable),
        max_turns=config.max_turns or environment.default_max_turns,
    )
    if result.iteration == 0:
        facts = replace(facts, demonstrated=await _demonstrated(config, environment))
    # A reflective environment has learned since the rollouts were made, and is no longer what they saw.
    if repeats and _is_probed(result, config) and not isinstance(environment, Reflective):
        facts = replace(facts, replay=await _replayed(result, config, environment, prompt))
    if not isinstance(policy, ReportingPolicy):
        return facts
    facts = replace(facts, base_model=policy.base_model, readings=readings_of(result, policy.tool_format))
    try:
        facts = replace(facts, weights_sha256=await policy.weights_sha256(result.step))
        return replace(facts, probe=await _probe(policy, result.step) if _is_probed(result, config) else None)
    except (BackendUnavailable, BackendRefused, ValueError) as error:
        log.warning("the policy could not be examined", iteration=result.iteration, error=str(error))
        return facts


async def _true_success(result: IterationResult, environment: Environment) -> TrueSuccess:
    try:
        return await true_success(result, environment)
    except Exception as error:  # what an environment does wrong here must not end the run that is examined
        log.warning("rollouts could not be checked", iteration=result.iteration, error=str(error))
        return {}


async def _demonstrated(config: RunConfig, environment: Environment) -> tuple[str, ...]:
    count = min(config.first_scenario, _MOST_DEMONSTRATED)
    try:
        scenarios = await off_loop(environment, environment.scenarios, "train", count, config.seed) if count else ()
    except Exception as error:  # as above
        log.warning("the demonstrated scenarios are not known", error=str(error))
        return ()
    return tuple(scenario.id for scenario in scenarios)


async def _replayed(
    result: IterationResult, config: RunConfig, environment: Environment, prompt: Prompt | None
) -> Replay | None:
    try:
        return await replayed(result, config, environment, prompt)
    except Exception as error:  # as above
        log.warning("no rollout could be replayed", iteration=result.iteration, error=str(error))
        return None


def _is_probed(result: IterationResult, config: RunConfig) -> bool:
    """Return whether the sampler is asked after this iteration. At every one it would take 4% of the time on a CPU."""
    number = result.iteration - config.supervised_iterations
    return bool(result.groups) and (number <= _PROBED_FIRST or number % _PROBED_EVERY == 0)


async def _probe(policy: ReportingPolicy, step: int) -> Probe | None:
    """Compare the sampler's log-probabilities with the trainer's, at the tokens that the step moved most."""
    measured = await policy.measured(step)
    if not measured:
        return None
    scores = await policy.logprobs(step, [token.token_ids for token in measured])
    compared = [(token, score) for token, score in zip(measured, scores, strict=True) if score is not None]
    return Probe.of(compared) if compared else None
