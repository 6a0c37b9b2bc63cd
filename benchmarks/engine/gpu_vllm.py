"""vLLM's side of `benchmarks.engine.gpu`: `python -m benchmarks.engine.gpu_vllm 14B --quantization fp8`.

Makes the same rollouts with vLLM alone and trains nothing. Each turn is one `generate` over all 48 conversations, with
token ids in and out, the log-probabilities of the sampled
tokens, and vLLM's prefix cache. Made for vLLM 0.24.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, Qwen3MoeConfig

from benchmarks.engine.gpu import GROUPS, MODELS, REPLY, ROLLOUTS, TURNS, prompts, qwen, timed, tool_result
from learnloop_service.training.engine.__main__ import TINY_BASE

CONTEXT = 4096
FORCED = {"max_tokens": REPLY, "ignore_eos": True, "detokenize": False}
"""Sampling parameters of a reply."""
ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
SAMPLED: dict[str, Callable[[], PreTrainedConfig]] = {
    **MODELS,
    "30B-A3B": partial(qwen, Qwen3MoeConfig, hidden_size=2048, intermediate_size=6144, num_hidden_layers=48,
                       num_attention_heads=32, num_key_value_heads=4, head_dim=128, tie_word_embeddings=False,
                       num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True),
}  # fmt: skip
"""Models for vLLM's rollouts, including a mixture of experts that the engine does not train."""


def describe(name: str, directory: Path) -> None:
    """Write a model's config and tokenizer for vLLM, which invents the weights (`load_format="dummy"`)."""
    config = SAMPLED[name]()
    config.architectures = [ARCHITECTURES[config.model_type]]
    config.dtype = "bfloat16"
    config.save_pretrained(directory)
    AutoTokenizer.from_pretrained(TINY_BASE).save_pretrained(directory)


def rollouts(llm: Any, sampling: Any, seed: int) -> None:
    """Run all conversations of an iteration, turn by turn."""
    conversations = [list(prompt) for prompt in prompts(seed) for _ in range(ROLLOUTS)]
    for turn in range(TURNS):
        inputs = [{"prompt_token_ids": ids} for ids in conversations]
        for number, output in enumerate(llm.generate(inputs, sampling, use_tqdm=False)):
            conversations[number] += [*output.outputs[0].token_ids, *tool_result(seed, number, turn)]


def main() -> int:
    from vllm import LLM, SamplingParams

    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine.gpu_vllm", description=__doc__)
    parser.add_argument("model", choices=SAMPLED)
    parser.add_argument("--iterations", type=int, default=3, help="those that count, after one that does not")
    parser.add_argument("--quantization", help="for instance fp8, of weights and activations; without it bfloat16")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        describe(options.model, Path(directory))
        llm = LLM(
            directory,
            load_format="dummy",
            quantization=options.quantization,
            max_model_len=CONTEXT,
            max_num_seqs=GROUPS * ROLLOUTS,
            gpu_memory_utilization=0.85,
        )
        sampling = SamplingParams(logprobs=0, **FORCED)
        seconds = []
        for seed in range(options.iterations + 1):
            with timed() as rollout:
                rollouts(llm, sampling, seed)
            seconds += rollout
        median = statistics.median(seconds[1:])
        sampled = GROUPS * ROLLOUTS * TURNS * REPLY
        print(json.dumps({"rollout_s": median, "sampled_tokens_per_s": sampled / median}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
