"""Training a policy from a test."""

from collections.abc import Sequence
from typing import Any

from environment.base import Json
from training.backends.base import Policy, TrainOutcome, TrainRequest


async def train(
    policy: Policy, groups: Sequence[Any] = (), *, expected_step: int = 0, learning_rate: float = 1e-3, **options: Json
) -> TrainOutcome:
    """Submit a training and wait for its outcome."""
    job_id = await policy.submit(TrainRequest(groups, learning_rate, expected_step, options))
    return await policy.follow(job_id, expected_step)
