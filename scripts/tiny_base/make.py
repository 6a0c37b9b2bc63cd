"""Makes the tiny base model: demonstrations, tokenizer, supervised training, Hugging Face directory, model card.

    python -m scripts.tiny_base.make --out build/tiny --device cuda

This takes a few minutes on a GPU (an hour or two on a CPU). The model is Qwen3-shaped, so any library that loads Qwen3
can load it.
"""

import argparse
import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from learnloop_service.training.engine.cpu_mode import set_cpu_mode
from scripts.tiny_base.corpus import Corpus, conversation, make_corpus
from scripts.tiny_base.tokenizer import END_OF_TURN, PADDING, save_tokenizer, train_tokenizer

_UNUSED = 100_000_000
"""Number of the first demonstration reserved for training the tokenizer."""


@dataclass(frozen=True, slots=True)
class BaseRecipe:
    """All inputs that determine the weights, apart from the device's arithmetic."""

    hidden: int = 192
    layers: int = 5
    heads: int = 6
    key_value_heads: int = 2
    head_dim: int = 32
    mlp: int = 512
    context: int = 2048
    tokens: int = 90_000_000
    batch_tokens: int = 24_576
    learning_rate: float = 3e-3
    warmup_steps: int = 100
    context_weight: float = 0.1
    """Loss weight of tokens that the agent read rather than wrote."""
    email_share: float = 0.5
    seed: int = 0


def main() -> None:
    """Parse the arguments and make the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--corpus", type=Path, help="keep the corpus here and use it again if it is there")
    for name, default in asdict(BaseRecipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    arguments = vars(parser.parse_args())
    set_cpu_mode()
    out, device, processes, corpus_folder = (arguments.pop(name) for name in ("out", "device", "processes", "corpus"))
    recipe = BaseRecipe(**arguments)
    started = time.monotonic()
    tokenizer, corpus = _corpus(recipe, processes, corpus_folder)
    print(f"corpus: {len(corpus.tokens):,} tokens in {time.monotonic() - started:.0f} s", flush=True)
    model, loss = train(recipe, tokenizer, corpus, torch.device(device))
    save(model, tokenizer, recipe, out, loss, time.monotonic() - started)


def _corpus(recipe: BaseRecipe, processes: int, folder: Path | None) -> tuple[Tokenizer, Corpus]:
    if folder and (folder / "corpus.npz").is_file():
        arrays = np.load(folder / "corpus.npz")
        return Tokenizer.from_file(str(folder / "tokenizer.json")), Corpus(**arrays)
    tokenizer = train_tokenizer([conversation(_UNUSED + i, recipe.seed, 0.5) for i in range(3_000)])
    corpus = make_corpus(tokenizer, recipe.tokens, recipe.seed, recipe.email_share, processes)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        np.savez(folder / "corpus.npz", tokens=corpus.tokens, agent=corpus.agent, starts=corpus.starts)
    return tokenizer, corpus


def build_model(recipe: BaseRecipe, tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    """Create an untrained model of the recipe's shape."""
    torch.manual_seed(recipe.seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=recipe.hidden,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.key_value_heads,
            head_dim=recipe.head_dim,
            intermediate_size=recipe.mlp,
            max_position_embeddings=recipe.context,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.token_to_id(END_OF_TURN),
            pad_token_id=tokenizer.token_to_id(PADDING),
        )
    )


def train(
    recipe: BaseRecipe, tokenizer: Tokenizer, corpus: Corpus, device: torch.device
) -> tuple[Qwen3ForCausalLM, float]:
    """Train once over the corpus, and return the model and the loss of the last steps on agent tokens."""
    model = build_model(recipe, tokenizer).to(device)  # type: ignore[arg-type]
    print(f"model: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    batches = _batches(corpus, recipe)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, recipe.warmup_steps, len(batches)))
    pad = model.config.pad_token_id
    recent: list[torch.Tensor] = []
    for step, batch in enumerate(batches, start=1):
        ids, weights = _padded(corpus, batch, pad, recipe.context_weight, device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(input_ids=ids).logits
        losses = functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        flat = weights[:, 1:].flatten()
        (losses @ flat / flat.sum()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        recent = [*recent[-19:], losses.detach()[flat == 1].mean()]
        if step % 500 == 0 or step == len(batches):
            print(f"step {step}/{len(batches)}: agent loss {torch.stack(recent).mean():.4f}", flush=True)
    return model, float(torch.stack(recent).mean())


def _rate(step: int, warmup: int, steps: int) -> float:
    return min(1.0, (step + 1) / warmup) * (0.05 + 0.95 * max(0.0, 1 - step / steps))


def _batches(corpus: Corpus, recipe: BaseRecipe) -> list[np.ndarray]:
    """Return conversation numbers by batch, grouped by similar length and in random order of batches."""
    rng = np.random.default_rng(recipe.seed)
    lengths = np.diff(corpus.starts)
    usable = np.flatnonzero(lengths <= recipe.context)
    batches: list[np.ndarray] = []
    for chunk in np.array_split(rng.permutation(usable), max(1, len(usable) // 20_000)):
        order = chunk[np.argsort(lengths[chunk], kind="stable")]
        start = 0
        while start < len(order):
            stop = start + 1
            while stop < len(order) and (stop - start + 1) * lengths[order[stop]] <= recipe.batch_tokens:
                stop += 1
            batches.append(order[start:stop])
            start = stop
    return [batches[i] for i in rng.permutation(len(batches))]


def _padded(
    corpus: Corpus, batch: np.ndarray, pad: int, context_weight: float, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and loss weights, [conversations, longest]. Padding on the right has weight 0."""
    spans = [(corpus.starts[i], corpus.starts[i + 1]) for i in batch]
    longest = max(stop - start for start, stop in spans)
    ids = np.full((len(spans), longest), pad, dtype=np.int64)
    weights = np.zeros((len(spans), longest), dtype=np.float32)
    for row, (start, stop) in enumerate(spans):
        ids[row, : stop - start] = corpus.tokens[start:stop]
        weights[row, : stop - start] = np.where(corpus.agent[start:stop], 1.0, context_weight)
    return torch.from_numpy(ids).to(device), torch.from_numpy(weights).to(device)


def save(
    model: Qwen3ForCausalLM, tokenizer: Tokenizer, recipe: BaseRecipe, out: Path, loss: float, seconds: float
) -> None:
    """Write the model in bf16 with tokenizer, template and `recipe.json`."""
    out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(out)  # type: ignore[arg-type]
    save_tokenizer(tokenizer, out, recipe.context)
    record = {
        "recipe": asdict(recipe),
        "parameters": sum(p.numel() for p in model.parameters()),
        "agent_loss": round(loss, 4),
        "seconds": round(seconds),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "commit": _commit(),
    }
    (out / "recipe.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    PreTrainedTokenizerFast.from_pretrained(out)
    print(json.dumps(record), flush=True)


def _commit() -> str | None:
    revision = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return revision.stdout.strip() or None


if __name__ == "__main__":
    main()
