"""CPU seconds of the engine in an iteration of the email agent: `python -m benchmarks.engine.cpu_iteration`.

Uses one torch thread and the CPU time of the process, so that other load on the machine matters little. The training
step is taken by the model's own modules on padded batches and by the engine, in turns on the same rollouts. Arithmetic
counts matrix products only, and is compared with the rate of one large product in the same process.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.learning.engine_learning import CONFIG, Agent, Try, rewarded_groups, trajectory
from training.engine.__main__ import TINY_BASE
from training.engine.cpu_mode import set_cpu_mode
from training.engine.trainer.grpo_loss import TrainOptions
from training.engine.trainer.grpo_step import grpo_step
from training.engine.trainer.policy import Policy, load_policy
from training.engine.trainer.pretrained import load_model
from training.engine.trainer.trajectories import TrainSequence, sequences
from training.tuning import Tuning


def rollouts(agent: Agent, spent: dict[str, float], iteration: int) -> list[list[tuple[Try, float]]]:
    """Return an iteration's rollouts; add their CPU seconds to `spent`."""
    started = time.process_time()
    groups = rewarded_groups(agent, 0, iteration)
    spent["rollouts"] += time.process_time() - started
    return groups


def timed(work: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    """Wrap the work so that its CPU seconds are added to `spent`."""

    def measured(*arguments: Any) -> Any:
        started = time.process_time()
        result = work(*arguments)
        spent[name] += time.process_time() - started
        return result

    return measured


def step(policy: Policy, items: Sequence[TrainSequence]) -> float:
    """Take a training step and return its CPU seconds."""
    started = time.process_time()
    options = TrainOptions(learning_rate=CONFIG.learning_rate, token_weighting="token")
    for _ in grpo_step(policy, items, options, micro_batch_tokens=None):
        pass
    return time.process_time() - started


def policies() -> tuple[Policy, Policy]:
    """Return a policy that trains through the model's modules on padded batches, and the engine's."""
    tuning, device = Tuning("full"), torch.device("cpu")
    modules = Policy(load_model(TINY_BASE, device, torch.float32), tuning, lambda: TINY_BASE)
    modules._packed, modules._whole = False, None
    del modules.base.whole_layers
    return modules, load_policy(TINY_BASE, lambda: TINY_BASE, tuning, device)


def operations(work: Callable[[], Any]) -> float:
    """Return the floating-point operations of the work's matrix products."""
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def product_rate() -> float:
    """Return the operations per second of one large product."""
    one, other = torch.randn(2048, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(5):
        started = time.process_time()
        one @ other
        seconds.append(time.process_time() - started)
    return 2 * 2048 * 1024 * 1024 / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.cpu_iteration", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    set_cpu_mode()
    torch.set_num_threads(1)
    rate, spent = product_rate(), defaultdict[str, float](float)
    with tempfile.TemporaryDirectory() as directory:
        agent = Agent(Path(directory), "cpu")
        groups = rewarded_groups(agent, 0, 1)  # loads the weights
        engine = agent._engine
        target = engine.registry.resolve(agent._model.full_name)
        weights: Any = engine.sampler.weights(target.key)
        for name in ("prefill", "decode"):
            setattr(weights, name, timed(getattr(weights, name), name, spent))
        for number in range(options.rounds):
            rollouts(agent, spent, 2 + number)
        for name in ("prefill", "decode"):
            delattr(weights, name)
        sampled = operations(lambda: rewarded_groups(agent, 0, 2 + options.rounds))
        trajectories = [tuple(trajectory(each, reward) for each, reward in group) for group in groups]
        started = time.process_time()
        items = list(sequences(trajectories, engine.tokenizer(target), scale_rewards=True))
        spent["tokenising"] = time.process_time() - started
    modules, whole = policies()
    pairs = [(step(modules, items), step(whole, items)) for _ in range(options.rounds)]
    trained = operations(lambda: step(whole, items))
    each = {name: seconds / options.rounds for name, seconds in spent.items()}
    before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"rollouts {each['rollouts']:.2f} s: prefill {each['prefill']:.2f}, decode {each['decode']:.2f}")
    print(f"tokenising for training {spent['tokenising']:.2f} s")
    print(f"training step {before:.2f} s by modules, {after:.2f} s by the engine: {before / after:.2f} times faster")
    print(f"a large product reaches {rate / 1e9:.0f} GFLOP/s")
    computed = each["prefill"] + each["decode"]
    for name, work, seconds in (("prefill and decode", sampled, computed), ("training", trained, after)):
        print(f"{name}: {work / 1e9:.0f} GFLOP, {work / seconds / rate:.0%} of that")


if __name__ == "__main__":
    main()
