"""TRL's side of `benchmarks.engine.gpu`, with GRPOTrainer: `python -m benchmarks.engine.gpu_trl 14B`.

Makes the same rollouts with vLLM in TRL's process (`vllm_mode="colocate"`). The multi-turn rollouts are TRL's
`rollout_func`, with the loop of `benchmarks/engine/gpu_vllm.py`; TRL merges the adapter and copies all weights to vLLM
before each iteration. Each iteration has one optimizer step and one checkpoint, and the LoRA is the same. By default
TRL recomputes the log-probabilities of vLLM's tokens before it trains, to correct for the difference; the `uncorrected`
figures are for the same work without that pass. Made for TRL 1.16 and vLLM 0.24.
"""

import argparse
import json
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, TrainerCallback

from benchmarks.engine.gpu import (
    DATASHEET_FLOPS,
    GROUPS,
    MODELS,
    PEAK_FLOPS,
    ROLLOUTS,
    TURNS,
    Shape,
    distinct,
    now,
    peak_gb,
    prompts,
    reset_peak,
    timed,
    tool_result,
)
from benchmarks.engine.gpu_vllm import CONTEXT, FORCED, describe
from learnloop_service.training.engine.__main__ import TINY_BASE

MICRO_BATCH = {"0.6B": 4, "1.7B": 4, "8B": 2}
"""Rollouts per training pass: as many as fit next to vLLM without recomputation. Larger models use 1."""


class Clock(TrainerCallback):
    """Records the seconds of each iteration and of its parts.

    After one uncounted iteration, `counted` iterations use TRL's correction, and as many more run without it.
    """

    def __init__(self, shape: Shape, counted: int) -> None:
        self.trainer: Any = None
        self.rollouts: list[float] = []
        self.syncs: list[float] = []
        self.useful: list[float] = []
        """Floating-point operations of the training (Shape.training)."""
        self._shape = shape
        self._counted = counted
        self._trained: list[float] = []
        """Seconds from the start of an iteration to the end of its optimizer step."""
        self._saved: list[float] = []
        self._begun = 0.0

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        self.trainer.vllm_importance_sampling_correction = state.global_step <= self._counted
        self._begun = now()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._trained.append(now() - self._begun)

    def on_save(self, *_: Any, **__: Any) -> None:
        self._saved.append(now() - self._begun - self._trained[-1])
        if len(self._saved) == 1:
            reset_peak()

    def watch(self, trainer: Any) -> None:
        """Time the trainer's weight transfers to vLLM; step callbacks switch its correction."""
        self.trainer = trainer
        sync = trainer.vllm_generation.sync_weights

        def timed_sync() -> None:
            with timed() as seconds:
                sync()
            self.syncs += seconds

        trainer.vllm_generation.sync_weights = timed_sync

    def rolled_out(self, seconds: float, sequences: list[tuple[int, ...]]) -> None:
        self.rollouts.append(seconds)
        self.useful.append(self._shape.training(*distinct(sequences)))

    def figures(self) -> dict[str, float]:
        """Return medians."""
        names = ("iteration_s", "rollout_s", "update_s", "train_s", "checkpoint_s", "useful_mfu_of_790")
        rows = []
        for trained, rollout, sync, saved, useful in zip(
            self._trained, self.rollouts, self.syncs, self._saved, self.useful, strict=True
        ):
            training = trained - rollout - sync
            rows.append((trained + saved, rollout, sync, training, saved, useful / training / PEAK_FLOPS))
        corrected, uncorrected = (
            dict(zip(names, map(statistics.median, zip(*part, strict=True)), strict=True))
            for part in (rows[1 : self._counted + 1], rows[self._counted + 1 :])
        )
        return corrected | {
            "useful_mfu_of_989": corrected["useful_mfu_of_790"] * PEAK_FLOPS / DATASHEET_FLOPS,
            **{f"uncorrected_{name}": uncorrected[name] for name in ("iteration_s", "train_s", "useful_mfu_of_790")},
        }


def rollouts(clock: Clock, _: list[Any], trainer: Any) -> dict[str, Any]:
    """Run all conversations of an iteration, turn by turn."""
    seed = trainer.state.global_step
    all_prompts = [prompt for prompt in prompts(seed) for _ in range(ROLLOUTS)]
    completions: list[list[int]] = [[] for _ in all_prompts]
    logprobs: list[list[float]] = [[] for _ in all_prompts]
    masks: list[list[int]] = [[] for _ in all_prompts]
    with timed() as seconds:
        for turn in range(TURNS):
            ids = [prompt + completion for prompt, completion in zip(all_prompts, completions, strict=True)]
            _, replies, sampled, _ = trainer.vllm_generation.generate(ids, None, ROLLOUTS)
            for number, reply in enumerate(replies):
                result = tool_result(seed, number, turn) if turn + 1 < TURNS else []
                completions[number] += [*reply, *result]
                logprobs[number] += [*(candidates[0] for candidates in sampled[number]), *([0.0] * len(result))]
                masks[number] += [1] * len(reply) + [0] * len(result)
    clock.rolled_out(
        seconds[0], [(*prompt, *completion) for prompt, completion in zip(all_prompts, completions, strict=True)]
    )
    return {"prompt_ids": all_prompts, "completion_ids": completions, "logprobs": logprobs, "env_mask": masks}


def reward(completions: list[Any], **_: Any) -> list[float | None]:
    """Return rewards that differ within every group."""
    return [float(number % ROLLOUTS) for number in range(len(completions))]


def random_policy(config: PreTrainedConfig) -> Any:
    """Build a random model in bfloat16 on the GPU."""
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]


def main() -> int:
    from datasets import Dataset
    from peft import LoraConfig
    from trl.generation import vllm_generation
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.gpu_trl", description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument(
        "--iterations", type=int, default=2, help="with TRL's correction, and as many without; after one to warm up"
    )
    parser.add_argument("--micro-batch", type=int, help="rollouts of one pass of the training")
    parser.add_argument("--recompute", action="store_true", help="activations, so that larger batches fit")
    parser.add_argument("--vllm-memory", type=float, default=0.4, help="share of the GPU's memory that vLLM takes")
    options = parser.parse_args()
    micro_batch = options.micro_batch or MICRO_BATCH.get(options.model, 1)
    # vLLM's dummy weights are replaced by the trainer's before the first rollout.
    generation: Any = vllm_generation  # the module does not export the names it imports
    generation.LLM = partial(generation.LLM, load_format="dummy")
    torch.manual_seed(0)
    described = MODELS[options.model]()
    clock = Clock(Shape.of(described), options.iterations)
    steps = 2 * options.iterations + 1
    with tempfile.TemporaryDirectory() as directory:
        describe(options.model, Path(directory))
        model = random_policy(described)
        model.name_or_path = directory
        config = GRPOConfig(
            output_dir=f"{directory}/checkpoints",
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=GROUPS * ROLLOUTS // micro_batch,
            num_generations=ROLLOUTS,
            max_completion_length=CONTEXT,
            max_steps=steps,
            learning_rate=1e-5,
            bf16=True,
            gradient_checkpointing=options.recompute,
            use_vllm=True,
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=options.vllm_memory,
            vllm_max_model_length=CONTEXT,
            generation_kwargs=FORCED,
            report_to=[],
            save_strategy="steps",
            save_steps=1,
            save_total_limit=1,
            logging_strategy="no",
        )
        trainer: Any = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [f"task {number}" for number in range(GROUPS * steps)]}),
            processing_class=AutoTokenizer.from_pretrained(TINY_BASE),
            peft_config=LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"),
            rollout_func=partial(rollouts, clock),
            callbacks=[clock],
        )
        clock.watch(trainer)
        trainer.train()
    print(json.dumps(clock.figures() | {"peak_gb": peak_gb()}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
