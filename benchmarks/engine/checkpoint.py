"""Milliseconds to write a checkpoint of the tiny policy durably: `python -m benchmarks.engine.checkpoint`.

Writes the tiny base's weights and AdamW state like the engine after a training step: files, their digests and a
manifest, all synced and then renamed into place. Alternates this with writing the same number of bytes to one synced
file, the minimum cost of a checkpoint on that disk. `--directory` chooses the disk.

With `--parameters 30e6` it measures train jobs instead, each one GRPO step of a random model of about that size that is
trained whole (`--lora`: through an adapter): seconds until it can be sampled, and until its checkpoint is durable.
Before 29 November 2026 sampling began at the second of them. `--device cuda` computes on a GPU.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.processes import machine
from learnloop_service.training.engine.__main__ import TINY_BASE
from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from learnloop_service.training.engine.engine import Engine
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.sampling.sampler import Sampler
from learnloop_service.training.engine.trainer.grpo_loss import TrainOptions
from learnloop_service.training.engine.trainer.policy import Policy, load_policy
from learnloop_service.training.tuning import Tuning
from tests.fakes.engine import odd_share, sampled_group


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


def random_base(directory: Path, parameters: float) -> Path:
    """Write a random model with the tiny base's tokenizer and about that number of parameters."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    shutil.copytree(TINY_BASE, directory)
    (directory / "model.safetensors").unlink()
    hidden = 512 if parameters < 2e8 else 1536
    shape = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_attention_heads": hidden // 64}
    layers = max(1, round(parameters / (14.5 * hidden**2)))
    config = json.loads((directory / "config.json").read_text()) | shape
    config |= {"head_dim": 64, "num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
    (directory / "config.json").write_text(json.dumps(config))
    make: Any = modeling_auto.AutoModelForCausalLM
    model = make.from_config(AutoConfig.from_pretrained(directory), dtype=torch.bfloat16)
    model.save_pretrained(directory)
    return directory


def train_jobs(directory: Path, parameters: float, device: str, rounds: int, *, lora: bool) -> None:
    """Print the seconds of train jobs until their steps can be sampled, and until they are durable."""
    base = random_base(directory / "base", parameters)
    registry = Registry(directory / "data", {"random": base})
    engine = Engine(registry, Sampler(slots=16), device=device)
    tuning = Tuning("lora", 8, 16) if lora else Tuning("full")
    model = registry.create(project="benchmark", name="job", base_model="random", tuning=tuning)
    print(f"{'step':>10} {'can be sampled':>16} {'is durable':>12}  (seconds of the job)")
    for _ in range(rounds):
        step = registry.newest(model.id).step
        group = sampled_group(engine, f"{model.full_name}@{step}", odd_share, count=8, first_seed=1_000 * step)
        started, sampled = time.perf_counter(), 0.0
        for progress in engine.train(model.id, [group], TrainOptions(learning_rate=1e-4)):
            if progress.trained is not None:
                sampled = time.perf_counter() - started
        durable = time.perf_counter() - started
        print(f"{step + 1:10} {sampled:16.2f} {durable:12.2f}", flush=True)
    newest = registry.newest(model.id).directory
    print(f"{sum(file.stat().st_size for file in newest.iterdir()) / 1e6:.0f} MB a checkpoint with its optimizer")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.checkpoint", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--directory", type=Path, help="where to write; the system's temporary directory by default")
    parser.add_argument("--parameters", type=float, help="measure train jobs of a random model of about this size")
    parser.add_argument("--lora", action="store_true", help="train it through an adapter")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    busy = machine()["busy_cores"]
    set_cpu_mode()
    torch.set_num_threads(1)
    if options.parameters:
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            train_jobs(Path(directory), options.parameters, options.device, options.rounds, lora=options.lora)
        return
    commit_s: list[float] = []
    write_s: list[float] = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        registry = Registry(Path(directory), {"learnloop/tiny": TINY_BASE})
        model = registry.create(project="benchmark", name="checkpoint", base_model="learnloop/tiny")
        policy = stepped_policy(registry.newest(model.id).directory)
        size = 0
        for _ in range(options.rounds):
            started = time.perf_counter()
            written = registry.commit(model.id, registry.newest(model.id), {"loss": 0.5}, policy.save)
            commit_s.append(time.perf_counter() - started)
            size = sum(file.stat().st_size for file in written.directory.iterdir())
            content = os.urandom(size)
            started = time.perf_counter()
            write_plainly(Path(directory) / "plain", content)
            write_s.append(time.perf_counter() - started)
    for name, seconds in (("checkpoint", commit_s), ("the same bytes", write_s)):
        ordered = sorted(1e3 * duration for duration in seconds)
        print(f"{name}: median {statistics.median(ordered):.0f} ms, {ordered[0]:.0f} to {ordered[-1]:.0f} ms")
    ratio = statistics.median(commit_s) / statistics.median(write_s)
    print(f"{size / 1e6:.1f} MB, {ratio:.1f} times; others kept {busy} cores busy")


if __name__ == "__main__":
    main()
