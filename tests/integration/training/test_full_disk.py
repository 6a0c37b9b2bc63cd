"""The engine's disk is full when it saves what it has trained."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from learnloop_service.training.backends.base import BackendUnavailable
from learnloop_service.training.backends.embedded import EmbeddedBackend
from tests.fakes.engine_process import EngineProcess
from tests.integration.training.embedded_models import spec, train
from tests.integration.training.killed_steps import Entries, sampled, take
from tests.policies import sampled_group


@contextmanager
def no_file_larger_than(process: psutil.Process, bytes: int) -> Iterator[None]:
    """To whoever writes, a file that may not grow looks as a full disk does; this one needs no rights."""
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (bytes, hard))
    try:
        yield
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))


async def test_a_checkpoint_that_cannot_be_written_is_trained_again(
    engine: EngineProcess, backend: EmbeddedBackend
) -> None:
    model = spec()
    policy = await backend.register(model)
    group = await sampled_group(policy)
    checkpoints = engine.data_dir / "models" / model.project / model.name / "checkpoints"
    weights = (checkpoints / "000000" / "model.safetensors").stat().st_size
    with no_file_larger_than(psutil.Process(engine.pid), weights - 1):
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match=r"checkpoint 1 could not be written: .*File too large"):
                await train(policy, group, expected_step=0)
        with pytest.raises(BackendUnavailable, match="File too large"):
            await backend.register(spec())
        assert await policy.step() == 0
        assert [path.name for path in checkpoints.iterdir()] == ["000000"]
        await sampled_group(policy)  # it still answers
    assert await train(policy, group, expected_step=0) == 1
    assert sorted(path.name for path in checkpoints.iterdir()) == ["000000", "000001"]


@pytest.mark.parametrize("logs", [True, False])
async def test_a_step_continues_when_the_disk_has_space_again(
    engine: EngineProcess, backend: EmbeddedBackend, logs: bool
) -> None:
    """The worker has followed a job that failed. It asks for another one, and does not follow the failed one again.
    Without `logs` the engine's log is on the full disk, too."""
    policy, journal = await backend.register(spec()), Entries()
    groups = await sampled(policy)
    model = policy.endpoint().model
    weights = next((engine.data_dir / "models" / model).glob("checkpoints/000000/model.safetensors")).stat().st_size
    with no_file_larger_than(psutil.Process(engine.pid), weights - 1 if logs else 1_000):
        for _ in range(2):
            with pytest.raises(BackendUnavailable, match="File too large"):
                await asyncio.wait_for(take(policy, journal, groups), 60)
    outcome = await take(policy, journal, groups)
    assert outcome.step == 1
    assert await policy.step() == 1
    assert [name for name in journal.saved[1] if name.startswith("train.withdrawn")] == [
        "train.withdrawn",
        "train.withdrawn/1",
    ]
