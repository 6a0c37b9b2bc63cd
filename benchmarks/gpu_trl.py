"""TRL's side of `benchmarks.gpu`: GRPOTrainer with vLLM in its process (`vllm_mode="colocate"`) on the same rollouts
(`python -m benchmarks.gpu_trl 14B`).

The multi-turn rollouts are TRL's `rollout_func`, as `benchmarks/gpu_vllm.py` has them; TRL merges the adapter and gives
all weights to vLLM before each iteration. One optimizer step for each iteration, the same LoRA, and what TRL does
unasked, such as computing the log-probabilities of vLLM's tokens again. Made for TRL 1.16 and vLLM 0.24.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks.gpu import GROUPS, MODELS, ROLLOUTS, TURNS, prompts, timed, tool_result
from benchmarks.gpu_vllm import CONTEXT, FORCED, describe
from training.engine.__main__ import TINY_BASE


class Clock(TrainerCallback):
    """Seconds of each iteration, and of its parts."""

    def __init__(self) -> None:
        self.iterations: list[float] = []
        self.rollouts: list[float] = []
        self.syncs: list[float] = []
        self._begun = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        self._begun = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        self.iterations.append(time.perf_counter() - self._begun)

    def measure_syncs(self, generation: Any) -> None:
        """Of TRL's vLLM, from now on."""
        sync = generation.sync_weights

        def timed_sync() -> None:
            with timed() as seconds:
                sync()
            self.syncs += seconds

        generation.sync_weights = timed_sync

    def figures(self) -> dict[str, float]:
        """Medians, the first iteration left out."""
        parts = zip(self.iterations, self.rollouts, self.syncs, strict=True)
        found = [(whole, rollout, sync, whole - rollout - sync) for whole, rollout, sync in parts][1:]
        names = ("iteration_s", "rollout_s", "update_s", "train_s")
        return dict(zip(names, map(statistics.median, zip(*found, strict=True)), strict=True))


def rollouts(clock: Clock, _: list[Any], trainer: Any) -> dict[str, Any]:
    """All conversations of an iteration, turn by turn."""
    seed = trainer.state.global_step
    own = [prompt for prompt in prompts(seed) for _ in range(ROLLOUTS)]
    completions: list[list[int]] = [[] for _ in own]
    logprobs: list[list[float]] = [[] for _ in own]
    masks: list[list[int]] = [[] for _ in own]
    with timed() as seconds:
        for turn in range(TURNS):
            ids = [prompt + said for prompt, said in zip(own, completions, strict=True)]
            _, replies, sampled, _ = trainer.vllm_generation.generate(ids, None, ROLLOUTS)
            for number, reply in enumerate(replies):
                result = tool_result(seed, number, turn) if turn + 1 < TURNS else []
                completions[number] += [*reply, *result]
                logprobs[number] += [*(each[0] for each in sampled[number]), *([0.0] * len(result))]
                masks[number] += [1] * len(reply) + [0] * len(result)
    clock.rollouts += seconds
    return {"prompt_ids": own, "completion_ids": completions, "logprobs": logprobs, "env_mask": masks}


def reward(completions: list[Any], **_: Any) -> list[float | None]:
    """Rewards that differ in every group."""
    return [float(number % ROLLOUTS) for number in range(len(completions))]


def main() -> int:
    from datasets import Dataset
    from peft import LoraConfig
    from trl.generation import vllm_generation
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_trl", description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--iterations", type=int, default=2, help="those that count, after one that does not")
    parser.add_argument("--micro-batch", type=int, default=1, help="rollouts of one pass of the training")
    parser.add_argument("--recompute", action="store_true", help="activations, so that larger batches fit")
    parser.add_argument("--vllm-memory", type=float, default=0.4, help="share of the GPU's memory that vLLM takes")
    options = parser.parse_args()
    # The weights that vLLM makes up are replaced by the trainer's before the first rollout.
    vllm_generation.LLM = partial(vllm_generation.LLM, load_format="dummy")
    torch.manual_seed(0)
    clock = Clock()
    with tempfile.TemporaryDirectory() as directory:
        describe(options.model, Path(directory))
        with torch.device("cuda"):
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                MODELS[options.model](), dtype=torch.bfloat16
            )
        model.name_or_path = directory
        config = GRPOConfig(
            output_dir=directory,
            per_device_train_batch_size=options.micro_batch,
            gradient_accumulation_steps=GROUPS * ROLLOUTS // options.micro_batch,
            num_generations=ROLLOUTS,
            max_completion_length=CONTEXT,
            max_steps=options.iterations + 1,
            learning_rate=1e-5,
            bf16=True,
            gradient_checkpointing=options.recompute,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=options.vllm_memory,
            vllm_max_model_length=CONTEXT,
            generation_kwargs=FORCED,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
        )
        tasks = GROUPS * (options.iterations + 1)
        trainer: Any = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [f"task {number}" for number in range(tasks)]}),
            processing_class=AutoTokenizer.from_pretrained(TINY_BASE),
            peft_config=LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"),
            rollout_func=partial(rollouts, clock),
            callbacks=[clock],
        )
        clock.measure_syncs(trainer.vllm_generation)
        trainer.train()
    print(json.dumps(clock.figures() | {"peak_gb": torch.cuda.max_memory_allocated() / 1e9}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
