"""Sampling from a policy and training it from a test."""

from collections.abc import Sequence
from typing import Any

from learnloop_service.environment.base import Json
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.backends.base import Policy, TrainOutcome, TrainRequest
from learnloop_service.training.rollout.chat import open_chat


async def train(
    policy: Policy, groups: Sequence[Any] = (), *, expected_step: int = 0, learning_rate: float = 1e-3, **options: Json
) -> TrainOutcome:
    """Submit a training and wait for its outcome."""
    job_id = await policy.submit(TrainRequest(groups, learning_rate, expected_step, options))
    return await policy.follow(job_id, expected_step)


async def sampled_group(policy: Policy, *, step: int | None = None, tokens: int = 8) -> Any:
    """Four replies in ART's form, paid for odd token ids."""
    art = import_art()
    messages: Any = [{"role": "user", "content": "When?"}]
    trajectories = []
    async with open_chat(policy.endpoint(step)) as chat:
        for seed in range(4):
            completion = await chat.client.chat.completions.create(
                model=chat.model, messages=messages, seed=seed, max_tokens=tokens, logprobs=True
            )
            [choice] = completion.choices
            assert choice.logprobs
            ids = [int(token.token.removeprefix("token_id:")) for token in choice.logprobs.content or ()]
            reward = sum(number % 2 for number in ids) / len(ids)
            trajectories.append(art.Trajectory(messages_and_choices=[*messages, choice], reward=reward))
    return art.TrajectoryGroup(trajectories)
