"""Compare sampled tokens per second of the engine's sampler and `transformers.generate`, same model, same process.

    python -m benchmarks.engine.sampling [--model DIR] [--conversations 1 8 32 64] [--json]

On both sides every conversation has its own random prompt and every reply has the full length. The sides alternate, so
that other load on the machine affects both; figures are medians.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from training.engine.cpu_mode import set_cpu_mode
from training.engine.sampling.sampler import Sample, Sampler, SampleRequest
from training.engine.weights.weights import snapshot


@dataclass(frozen=True, slots=True)
class Result:
    """Tokens per second, end to end: prompts in, replies out."""

    conversations: int
    engine: float
    generate: float
    ratio: float
    """Median over the rounds of engine / generate, each pair measured back to back."""


def tiny_model() -> Any:
    """Build a random model with the shape of the included one: 2.2 M parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=1030,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).train(False)


def engine_side(model: Any, prompts: torch.Tensor, tokens: int) -> Callable[[], None]:
    weights = snapshot(model)

    def sample() -> None:
        sampler = Sampler()
        sampler.set_weights("model", weights)
        done: list[Sample | Exception] = []
        for seed, prompt in enumerate(prompts.tolist()):
            sampler.submit(SampleRequest(tuple(prompt), "model", tokens, seed=seed), None, done.append)
        while sampler.busy:
            sampler.step()
        if [len(each.ids) for each in done if isinstance(each, Sample)] != [tokens] * len(prompts):
            raise RuntimeError(f"not every reply has {tokens} tokens: {done}")

    return sample


def generate_side(model: Any, prompts: torch.Tensor, tokens: int) -> Callable[[], None]:
    def generate() -> None:
        with torch.inference_mode():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=0,
            )
        if out.shape[1] != prompts.shape[1] + tokens:
            raise RuntimeError(f"generate gave {out.shape[1] - prompts.shape[1]} tokens, not {tokens}")

    return generate


def seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(model: Any, conversations: int, prompt_tokens: int, tokens: int, rounds: int) -> Result:
    generator = torch.Generator().manual_seed(conversations)
    vocabulary = int(model.config.get_text_config().vocab_size)
    prompts = torch.randint(1, vocabulary, (conversations, prompt_tokens), generator=generator)
    sides = (engine_side(model, prompts, tokens), generate_side(model, prompts, tokens))
    for warm_up in sides:
        warm_up()
    taken: list[list[float]] = [[], []]
    for turn in range(rounds):
        for side in sorted((0, 1), reverse=turn % 2 == 1):
            taken[side].append(seconds(sides[side]))
    sampled = conversations * tokens
    return Result(
        conversations=conversations,
        engine=sampled / statistics.median(taken[0]),
        generate=sampled / statistics.median(taken[1]),
        ratio=statistics.median(other / ours for ours, other in zip(*taken, strict=True)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face directory; by default a random tiny model")
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--prompt-tokens", type=int, default=150)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each reply")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    set_cpu_mode()
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model) if options.model else tiny_model()
    model.generation_config.eos_token_id = None  # replies have full length on both sides
    results = [
        compare(model, count, options.prompt_tokens, options.tokens, options.rounds) for count in options.conversations
    ]
    if options.json:
        figures = {
            "model": str(options.model or "random, 2.2 M parameters"),
            "prompt_tokens": options.prompt_tokens,
            "tokens": options.tokens,
            "threads": options.threads,
            "results": [asdict(result) for result in results],
        }
        print(json.dumps(figures, indent=2))
        return
    print(
        f"{options.prompt_tokens} prompt tokens, {options.tokens} sampled tokens a reply, {options.threads} thread(s)"
    )
    print(f"{'conversations':>13}  {'engine tok/s':>12}  {'generate tok/s':>14}  {'ratio':>6}")
    for result in results:
        print(f"{result.conversations:>13}  {result.engine:>12,.0f}  {result.generate:>14,.0f}  {result.ratio:>5.1f}x")


if __name__ == "__main__":
    main()
