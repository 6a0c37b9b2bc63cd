"""A random causal language model, small enough for tests, in Hugging Face layout with tokenizer and chat template."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

import learnloop_service.training.engine.text

CHAT_TEMPLATE = Path(learnloop_service.training.engine.text.__path__[0]) / "chat_template.jinja"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
LINES = (
    "system\nYou answer questions about the mail in one inbox. Use the tools.",
    "user\nWhen is the kickoff of the Banulo project, and who leads it?",
    'assistant\n{"name": "search_inbox", "arguments": {"keywords": ["Banulo", "kickoff"]}}\n',
    '{"name": "return_final_answer", "arguments": {"answer": "12 May", "sources": ["m41"]}}\n',
    "<tool_response>\nm41 Kickoff moved | Rina Sola\nm17 Budget | Tomo Veka\n</tool_response>",
)


def make_tiny_model(
    directory: Path,
    family: str = "qwen3",
    *,
    vocab: int = 320,
    seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random model into `directory`, which is created if missing, and return the directory.

    `family` is one of qwen3, qwen2, llama, mistral, gpt_neox. `vocab` is the number of token ids including special
    ones, at least 256 + 5. The defaults are hidden size 32, 2 layers, 4 heads over 2 kv heads and context 512;
    `overrides` are fields of the model's config. The same arguments give the same files.
    """
    tokenizer = tiny_tokenizer(vocab)
    config = _config(family, vocab, tokenizer, dict(overrides or {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            # A fresh model is almost uniform and has zero biases, which would hide errors in a forward pass.
            for name, parameter in model.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_(0.0, 0.1)
                elif "norm" in name:
                    parameter.normal_(1.0, 0.1)
                else:
                    parameter.mul_(4.0)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _config(family: str, vocab: int, tokenizer: PreTrainedTokenizerFast, overrides: dict[str, Any]) -> PreTrainedConfig:
    shape: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    grouped = {**shape, "num_key_value_heads": 2}
    configs: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
        "qwen3": (Qwen3Config, {**grouped, "head_dim": 16}),
        "qwen2": (Qwen2Config, grouped),
        "llama": (LlamaConfig, {**grouped, "tie_word_embeddings": False}),
        "mistral": (MistralConfig, {**grouped, "sliding_window": None}),
        "gpt_neox": (GPTNeoXConfig, {**shape, "tie_word_embeddings": False}),
    }
    config_class, fields = configs[family]
    return config_class(**{**fields, **overrides})


def tiny_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on LINES, and add unused words until the ids reach `vocab`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - 2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL_TOKENS[:3]),
    )
    bpe.train_from_iterator(LINES, trainer)
    bpe.add_tokens(list(SPECIAL_TOKENS[3:]))
    bpe.add_tokens([f"<|unused{i}|>" for i in range(vocab - bpe.get_vocab_size())])
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = CHAT_TEMPLATE.read_text()
    return tokenizer
