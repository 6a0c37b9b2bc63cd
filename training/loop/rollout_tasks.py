"""The rollouts to make, and the seeds of all randomness in a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from learnloop_service.environment.base import Scenario


@dataclass(frozen=True, slots=True)
class RolloutTask:
    """A rollout to make: its scenario and seed."""

    scenario: Scenario
    seed: int


def seed_of(run_seed: int, *parts: object) -> int:
    """Return the seed for one purpose of a run."""
    return Random(":".join(map(str, (run_seed, *parts)))).getrandbits(53)


def rollout_tasks(run_seed: int, scenarios: Sequence[Scenario], count: int, *parts: object) -> list[RolloutTask]:
    """Return `count` rollouts per scenario. Their seeds differ even if a scenario occurs twice."""
    return [
        RolloutTask(scenario, seed_of(run_seed, *parts, index, number))
        for index, scenario in enumerate(scenarios)
        for number in range(count)
    ]
