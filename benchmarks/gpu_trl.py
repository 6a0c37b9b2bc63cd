"""TRL's side of `benchmarks.gpu`: GRPOTrainer on the same rollouts (`python -m benchmarks.gpu_trl 14B`).

The multi-turn rollouts are TRL's `rollout_func`; each turn is one batched `generate` over all 48 conversations, in
bfloat16 with a key-value cache. One optimizer step for each iteration, the same LoRA.
"""

import json
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks.gpu import GROUPS, MODELS, REPLY, ROLLOUTS, TURNS, prompts, tool_result
from training.engine.__main__ import TINY_BASE

MICRO_BATCH = 4
ITERATIONS = 2
"""The first one is not counted."""


def rollouts(_: list[Any], trainer: Any) -> dict[str, Any]:
    """All conversations of an iteration, turn by turn."""
    seed = trainer.state.global_step
    model = trainer.accelerator.unwrap_model(trainer.model)
    own = [prompt for prompt in prompts(seed) for _ in range(ROLLOUTS)]
    ids = [list(prompt) for prompt in own]
    masks: list[list[int]] = [[] for _ in ids]
    was_training = model.training
    model.eval()
    model.config.use_cache = True
    for turn in range(TURNS):
        batch = torch.tensor(ids, device="cuda")  # forced lengths: no padding
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            whole = model.generate(
                batch, attention_mask=torch.ones_like(batch), max_new_tokens=REPLY, min_new_tokens=REPLY,
                do_sample=True, temperature=1.0, top_p=1.0, top_k=0, pad_token_id=0, eos_token_id=None, use_cache=True,
            )  # fmt: skip
        ids = whole.tolist()
        for rollout, mask in enumerate(masks):
            mask += [1] * REPLY
            if turn + 1 < TURNS:
                ids[rollout] += tool_result(seed, rollout, turn)
                mask += [0] * (len(ids[rollout]) - len(own[rollout]) - len(mask))
    model.train(was_training)
    trainer.rollout_seconds.append(time.perf_counter())
    completions = [whole[len(prompt) :] for whole, prompt in zip(ids, own, strict=True)]
    return {
        "prompt_ids": own,
        "completion_ids": completions,
        "logprobs": [[0.0] * len(each) for each in completions],
        "env_mask": masks,
    }


def reward(completions: list[Any], **_: Any) -> list[float | None]:
    """Rewards that differ in every group."""
    return [float(number % ROLLOUTS) for number in range(len(completions))]


class Clock(TrainerCallback):
    """Notes when each step begins and ends."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.seconds: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        self.begun.append(time.perf_counter())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.begun[-1])


def main(name: str) -> int:
    from datasets import Dataset
    from peft import LoraConfig
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(MODELS[name](), dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    clock = Clock()
    with tempfile.TemporaryDirectory() as directory:
        config = GRPOConfig(
            output_dir=directory,
            per_device_train_batch_size=MICRO_BATCH,
            gradient_accumulation_steps=GROUPS * ROLLOUTS // MICRO_BATCH,
            num_generations=ROLLOUTS,
            max_completion_length=4096,
            max_steps=ITERATIONS,
            learning_rate=1e-5,
            bf16=True,
            gradient_checkpointing=name in ("8B", "14B"),  # the others fit without, and are faster so
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
        )
        trainer: Any = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": [f"task {number}" for number in range(GROUPS * ITERATIONS)]}),
            processing_class=AutoTokenizer.from_pretrained(TINY_BASE),
            peft_config=LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules="all-linear"),
            rollout_func=rollouts,
            callbacks=[clock],
        )
        trainer.rollout_seconds = []
        trainer.train()
    rollout = [end - begun for end, begun in zip(trainer.rollout_seconds, clock.begun, strict=True)]
    print(
        json.dumps(
            {
                "iteration_s": statistics.median(clock.seconds[1:]),
                "rollout_s": statistics.median(rollout[1:]),
                "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
