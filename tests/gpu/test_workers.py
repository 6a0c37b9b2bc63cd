"""Workers on two GPUs: they train together through NCCL, and go on when one is killed.

`python -m pytest --noconftest tests/gpu` on a machine with two; they skip elsewhere.
"""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from learnloop_service.training.engine.computing import PolicyStep
from learnloop_service.training.engine.engine import Engine, TrainResult
from learnloop_service.training.engine.registry.model_record import NewModel
from learnloop_service.training.engine.sampling.requests import SampleRequest
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.trajectories import Group
from learnloop_service.training.engine.workers.local import LocalWorkers
from learnloop_service.training.tuning import Tuning
from tests.fakes.engine import make_engine, odd_share, sampled_group
from tests.fakes.worker_pool import Following, Pool, worker_pool

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
OPTIONS = TrainOptions(learning_rate=1e-3, max_kl=1e-2, kl_penalty_coef=0.1)
ROUNDED = 0.1
"""Share of a step's movement of the weights. Where a gradient is nearly 0, rounding changes the sign of Adam's step."""


@pytest.fixture
def alone(tmp_path: Path) -> Engine:
    """A CPU's engine with the base model, which samples what is trained on."""
    engine = make_engine(tmp_path / "alone")
    engine.registry.create(project="test", name="agent", base_model="tiny")
    return engine


@pytest.fixture
def groups(alone: Engine) -> list[Group]:
    return [sampled_group(alone, "test/agent", odd_share, question=f"{number}: when?") for number in range(8)]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def weights(pool: Pool, model_id: str) -> dict[str, torch.Tensor]:
    [file] = pool.registry.newest(model_id).directory.glob("*model.safetensors")
    return load_file(file)


@pytest.mark.parametrize("tuning", [Tuning("full"), Tuning("lora")], ids=lambda tuning: tuning.mode)
def test_two_gpus_train_what_one_does(tmp_path: Path, alone: Engine, groups: list[Group], tuning: Tuning) -> None:
    base = alone.registry.base_directory("tiny")
    runs: list[tuple[dict[str, float], dict[str, torch.Tensor], dict[str, torch.Tensor]]] = []

    async def trained(count: int) -> None:
        roles = [(True, True)] * count
        async with worker_pool(tmp_path / str(count), base, roles, LocalWorkers(), "cuda") as pool:
            model_id = (await pool.create_model(NewModel("test", "agent", "tiny", tuning=tuning))).id
            first = await pool.trained(PolicyStep(model_id, groups, OPTIONS))
            before = weights(pool, model_id)
            await pool.trained(PolicyStep(model_id, groups, OPTIONS))
            runs.append((first.metrics, before, weights(pool, model_id)))
            target = pool.registry.resolve("test/agent")
            requests = [SampleRequest((30, 31, 32), target.key, 8, seed=seed) for seed in range(4)]
            samples = await asyncio.gather(*(pool.sample(target, sample_request) for sample_request in requests))
            assert all(len(sampled.ids) == 8 for sampled in samples)

    run(trained(1))
    run(trained(2))
    (metrics, before, after), (metrics_of_two, before_of_two, after_of_two) = runs
    for name in ("loss", "kl_div", "entropy", "num_trainable_tokens", "grad_norm", "step_kl"):
        assert metrics_of_two[name] == pytest.approx(metrics[name], rel=0.05, abs=1e-3), name
    for ours, theirs in ((before, before_of_two), (after, after_of_two)):
        moved = sum(float((after[name] - before[name]).abs().sum()) for name in before)
        assert sum(float((ours[name] - theirs[name]).abs().sum()) for name in ours) < ROUNDED * moved


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_is_taken_once_when_a_trainer_is_killed(
    tmp_path: Path, alone: Engine, groups: list[Group], rank: int
) -> None:
    async def killed() -> None:
        base = alone.registry.base_directory("tiny")
        async with worker_pool(tmp_path / "data", base, placement=LocalWorkers(), device="cuda") as pool:
            model_id = (await pool.create_model(NewModel("test", "agent", "tiny"))).id
            training = Following(pool, PolicyStep(model_id, groups, OPTIONS, expected_step=0))
            await training.begun.wait()
            pool.kill(rank)
            outcome = await training.end
            assert isinstance(outcome, TrainResult)
            assert outcome.step == 1
            assert [checkpoint.step for checkpoint in pool.registry.steps(model_id)] == [0, 1]

    run(killed())
