"""Milliseconds to write a checkpoint of the tiny policy durably: `python -m benchmarks.engine.checkpoint`.

Writes the tiny base's weights and AdamW state like the engine after a training step: files, their digests and a
manifest, all synced and then renamed into place. Alternates this with writing the same number of bytes to one synced
file, the minimum cost of a checkpoint on that disk. `--directory` chooses the disk.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.processes import machine
from training.engine.__main__ import TINY_BASE
from training.engine.cpu_mode import set_cpu_mode
from training.engine.registry.registry import Registry
from training.engine.trainer.policy import Policy, load_policy
from training.tuning import Tuning


def stepped_policy(directory: Path) -> Policy:
    """Return a policy with optimizer state."""
    policy = load_policy(directory, lambda: TINY_BASE, Tuning("full"), torch.device("cpu"))
    random = torch.Generator().manual_seed(0)
    for parameter in policy.optimizer.parameters:
        parameter.grad = torch.randn(parameter.shape, generator=random)
    policy.optimizer.step(learning_rate=1e-4, max_grad_norm=1.0)
    return policy


def write_plainly(path: Path, content: bytes) -> None:
    """Write one file and sync it and its directory."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    directory = os.open(path.parent, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.checkpoint", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--directory", type=Path, help="where to write; the system's temporary directory by default")
    options = parser.parse_args()
    busy = machine()["busy_cores"]
    set_cpu_mode()
    torch.set_num_threads(1)
    taken: list[float] = []
    least: list[float] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        registry = Registry(Path(directory), {"learnloop/tiny": TINY_BASE})
        model = registry.create(project="benchmark", name="checkpoint", base_model="learnloop/tiny")
        policy = stepped_policy(registry.newest(model.id).directory)
        size = 0
        for _ in range(options.rounds):
            started = time.perf_counter()
            written = registry.commit(model.id, registry.newest(model.id), {"loss": 0.5}, policy.save)
            taken.append(time.perf_counter() - started)
            size = sum(file.stat().st_size for file in written.directory.iterdir())
            content = os.urandom(size)
            started = time.perf_counter()
            write_plainly(Path(directory) / "plain", content)
            least.append(time.perf_counter() - started)
    for name, seconds in (("checkpoint", taken), ("the same bytes", least)):
        ordered = sorted(1e3 * each for each in seconds)
        print(f"{name}: median {statistics.median(ordered):.0f} ms, {ordered[0]:.0f} to {ordered[-1]:.0f} ms")
    ratio = statistics.median(taken) / statistics.median(least)
    print(f"{size / 1e6:.1f} MB, {ratio:.1f} times; others kept {busy} cores busy")


if __name__ == "__main__":
    main()
