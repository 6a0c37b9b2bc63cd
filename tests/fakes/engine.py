"""An engine over a tiny random model, in the test's own thread."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from learnloop_service.training.engine.engine import Engine
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.requests import Sample, SampleRequest
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.trajectories import Conversation, Group, TrainingTrajectory
from tests.fakes.tiny_model import make_tiny_model


def make_engine(
    directory: Path, *, family: str = "qwen3", micro_batch_tokens: int | None = None, train_threads: int = 1
) -> Engine:
    """Return an engine with its data in `directory` and the base model `tiny`."""
    torch.set_num_threads(1)  # two threads on a busy machine are many times slower than one
    base = directory / "base"
    if not base.exists():
        make_tiny_model(base, family)
    registry = Registry(directory / "data", {"tiny": base}, allowed_roots=[directory])
    return Engine(registry, Sampler(slots=8), micro_batch_tokens=micro_batch_tokens, train_threads=train_threads)


def sampled_group(
    engine: Engine,
    name: str,
    reward: Callable[[Sequence[int]], float],
    *,
    count: int = 4,
    max_tokens: int = 12,
    question: str = "When is the kickoff?",
    first_seed: int = 0,
) -> Group:
    """Return `count` one-turn trajectories of the model `name`, sampled with seeds from `first_seed` up."""
    target = engine.registry.resolve(name)
    tokenizer = engine.tokenizer(target)
    messages = ({"role": "user", "content": question},)
    prompt = tuple(tokenizer.prompt(messages, None))
    requests = [
        SampleRequest(prompt, target.key, max_tokens, seed=first_seed + number, stop_ids=tokenizer.stop_ids)
        for number in range(count)
    ]
    return tuple(
        trajectory(messages, tokenizer.decode(sample.ids), sample, reward(sample.ids))
        for sample in engine.sample(target, requests)
    )


def trajectory(messages: Sequence[dict[str, str]], text: str, sample: Sample, reward: float) -> TrainingTrajectory:
    """Return a trajectory that ends with a sampled reply."""
    whole = (*messages, {"role": "assistant", "content": text})
    index = len(messages)
    conversation = Conversation(whole, None, {index: tuple(sample.ids)}, {index: tuple(sample.logprobs)})
    return TrainingTrajectory((conversation,), reward)


def odd_share(ids: Sequence[int]) -> float:
    """Return a reward that a random model can learn: the share of odd token ids."""
    return sum(token % 2 for token in ids) / len(ids)
