"""Models of the real engine, and one train step of them."""

from dataclasses import replace
from itertools import count
from typing import Any

from learnloop_service.training.backends.base import ModelSpec
from learnloop_service.training.backends.embedded import EmbeddedPolicy
from tests import policies

_names = count()


def spec(**changes: Any) -> ModelSpec:
    """A model that no other test has."""
    return replace(ModelSpec("embedded", f"agent-{next(_names)}", "random"), **changes)


async def train(policy: EmbeddedPolicy, group: Any, expected_step: int, **options: Any) -> int:
    outcome = await policies.train(policy, [group], expected_step=expected_step, **options)
    assert outcome.metrics["num_groups_trainable"] == 1
    return outcome.step
