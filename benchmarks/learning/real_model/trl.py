"""TRL's side of the time to a share of the test questions, with GRPOTrainer and vLLM in its process.

    python -m benchmarks.learning.real_model --arms grpo --demonstrations 24 --share 0.8 --data-dir DIR ...
    python -m benchmarks.learning.real_model.trl --start learnloop/NAME@2 --inbox demo-mail --data-dir DIR

Both sides train the same LoRA: TRL starts from the checkpoint that the run above wrote after its demonstrations. They
have the same questions in the same order, prompts, tools, reward, numbers of rollouts, learning rate with its warm-up,
optimizer and loss. TRL's rollouts are its `rollout_func`; all conversations of an iteration take their turns together,
as in TRL's own loop for tools.

Checkpoints are evaluated greedily, from the first one of an iteration in which training succeeded often enough, until
one answers the share. Seconds are those of training, without the start of vLLM and without evaluations. Made for TRL
1.16 and vLLM 0.24.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow  # type: ignore[import-untyped]
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks.learning.real_model.conversation import Conversation, Generate, Sampled, play
from benchmarks.learning.real_model.held_out import PROMISING
from learnloop_service.app.datasets.store import DatasetStore
from learnloop_service.environment.base import Environment, Json, Scenario
from learnloop_service.environment.registry import build
from learnloop_service.training.engine.__main__ import TINY_BASE, TINY_NAME
from learnloop_service.training.engine.registry.registry import Registry
from learnloop_service.training.engine.text.tokens import ChatTokenizer
from learnloop_service.training.engine.trainer.optimizer import BETAS
from learnloop_service.training.types import RunConfig

CONTEXT = 8192
"""Longest conversation in tokens."""


class Reached(Exception):
    """A checkpoint answers the share of the test questions."""


class Run(TrainerCallback):
    """Makes the rollouts, keeps the time, and evaluates until the share is reached."""

    def __init__(self, environment: Environment, tokenizer: ChatTokenizer, options: argparse.Namespace) -> None:
        self._environment = environment
        self.tokenizer = tokenizer
        self._share: float = options.share
        self._tests = environment.scenarios("test", options.questions, options.seed)
        count = options.iterations * options.groups
        self.scenarios = environment.scenarios("train", count, options.seed)
        self._began = self._evaluated_s = self._rollout_s = self._success = 0.0
        self._figures: dict[str, Json] = {}

    def rollouts(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Make an iteration's rollouts. Raises Reached."""
        vllm = trainer.vllm_generation

        def generate(ids: list[list[int]]) -> list[Sampled]:
            _, replies, logprobs, _ = vllm.generate(ids, None, 1)
            return [
                (list(reply), [of[0] for of in candidates]) for reply, candidates in zip(replies, logprobs, strict=True)
            ]

        if self._success >= PROMISING:
            self._evaluate(vllm, generate)
        clock = time.perf_counter()
        conversations = self._conversations([self.scenarios[int(number)] for number in prompts])
        verdicts = asyncio.run(play(self._environment, conversations, generate))
        self._rollout_s = time.perf_counter() - clock
        self._success = fmean(verdict.success for verdict in verdicts)
        self._figures = {
            "success": self._success,
            "malformed": fmean(verdict.malformed for verdict in verdicts),
            "reward": fmean(verdict.reward for verdict in verdicts),
            "sampled_tokens": sum(sum(conversation.mask) for conversation in conversations),
        }
        return {
            "prompt_ids": [conversation.prompt for conversation in conversations],
            "completion_ids": [conversation.completion for conversation in conversations],
            "logprobs": [conversation.logprobs for conversation in conversations],
            "env_mask": [conversation.mask for conversation in conversations],
            "earned": [verdict.reward for verdict in verdicts],
        }

    def _conversations(self, scenarios: Sequence[Scenario]) -> list[Conversation]:
        return [Conversation(self.tokenizer, self._environment.episode(scenario)) for scenario in scenarios]

    def _evaluate(self, vllm: Any, generate: Generate) -> None:
        """Have the newest weights, which vLLM has by now, answer all test questions greedily. Raises Reached."""
        clock = time.perf_counter()
        trained_s = clock - self._began - self._evaluated_s
        conversations = self._conversations(self._tests)
        temperature, vllm.temperature = vllm.temperature, 0.0
        verdicts = asyncio.run(play(self._environment, conversations, generate))
        vllm.temperature = temperature
        held_out = fmean(verdict.success for verdict in verdicts)
        self._evaluated_s += time.perf_counter() - clock
        _print(
            {
                "held_out": held_out,
                "seconds": round(trained_s, 1),
                "evaluation_s": round(time.perf_counter() - clock, 1),
            }
        )
        if held_out >= self._share:
            raise Reached

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        self._began = self._began or time.perf_counter()

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        torch.cuda.synchronize()
        now = time.perf_counter()
        seconds = {
            "rollout_s": round(self._rollout_s, 2),
            "seconds": round(now - self._began - self._evaluated_s, 2),
            "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
        }
        _print({"step": state.global_step, **self._figures, **seconds})


def earned(completions: list[Any], earned: list[float], **_: Any) -> list[float]:
    """Return the rewards that the rollouts brought along."""
    return earned


def trainer_of(run: Run, base: Path, adapter: Path, directory: str, options: argparse.Namespace) -> Any:
    """Set up TRL's trainer."""
    from datasets import Dataset
    from peft import PeftModel
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, device_map="cuda")
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=options.learning_rate, betas=BETAS, weight_decay=0.0)
    warmup = RunConfig().warmup_iterations
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    config = GRPOConfig(
        output_dir=directory,
        seed=options.seed,
        max_steps=options.iterations,
        num_generations=options.rollouts,
        per_device_train_batch_size=options.micro_batch,
        gradient_accumulation_steps=options.groups * options.rollouts // options.micro_batch,
        max_completion_length=CONTEXT,
        generation_kwargs={
            "max_tokens": options.max_completion_tokens,
            "stop_token_ids": sorted(run.tokenizer.stop_ids),
            "detokenize": False,
        },
        loss_type="cispo",
        epsilon_high=4.0,
        bf16=True,
        gradient_checkpointing=options.recompute,
        use_vllm=True,
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=options.vllm_memory,
        vllm_max_model_length=CONTEXT,
        vllm_importance_sampling_correction=not options.uncorrected,
        shuffle_dataset=False,
        report_to="none",
        save_strategy="steps",
        save_steps=1,
        save_total_limit=2,
        logging_strategy="no",
        disable_tqdm=True,
    )
    questions = pyarrow.table({"prompt": [str(number) for number in range(len(run.scenarios))]})
    return GRPOTrainer(
        model=model,
        reward_funcs=earned,
        args=config,
        train_dataset=Dataset(questions, fingerprint="questions"),
        processing_class=AutoTokenizer.from_pretrained(base),
        rollout_func=run.rollouts,
        optimizers=(optimizer, schedule),
        callbacks=[run],
    )


def main() -> None:
    options = _options()
    environment = build("email_search", _config(options.inbox, DatasetStore(options.data_dir)), options.data_dir)
    target = Registry(options.data_dir, {TINY_NAME: TINY_BASE}).resolve(options.start)
    run = Run(environment, ChatTokenizer(target.base_directory), options)
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        trainer = trainer_of(run, target.base_directory, target.directory, directory, options)
        try:
            trainer.train()
        except Reached:
            return
    sys.exit(f"{options.share:.0%} was not reached in {options.iterations} iterations")


def _config(inbox: str | None, store: DatasetStore) -> dict[str, Json]:
    """Return the environment's config for the newest version of prepared mail, as the service completes it."""
    if inbox is None:
        return {}
    version = store.versions(inbox)[-1]
    assert version.scenarios is not None
    return {"inbox": {"sha256": version.inbox["sha256"]}, "scenarios": store.scenarios(version.scenarios["sha256"])}


def _print(line: Json) -> None:
    print(json.dumps(line), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning.real_model.trl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIRECTORY")
    parser.add_argument("--start", required=True, metavar="MODEL@STEP", help="the checkpoint to train further, a LoRA")
    parser.add_argument("--inbox", metavar="NAME", help="prepared mail; default: the invented inboxes")
    parser.add_argument("--share", type=float, default=0.8, help="of the test questions")
    parser.add_argument("--questions", type=int, default=152)
    parser.add_argument("--iterations", type=int, default=45, help="at most")
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--max-completion-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--micro-batch", type=int, default=8, help="rollouts of one pass of the training")
    parser.add_argument("--recompute", action="store_true", help="activations, so that larger batches fit")
    parser.add_argument("--uncorrected", action="store_true", help="without the pass that corrects for vLLM's kernels")
    parser.add_argument("--vllm-memory", type=float, default=0.4, help="share of the GPU's memory that vLLM takes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
