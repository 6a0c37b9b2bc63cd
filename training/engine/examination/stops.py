"""Which tokens end a reply, and which ones should."""

from collections.abc import Mapping
from typing import Any

KNOWN_ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
)
"""Special tokens that end a message or a text in known model families. A model that writes one has ended its reply."""


def ends(special: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of the known ends among a tokenizer's special tokens."""
    return {token: special[token] for token in KNOWN_ENDS if token in special}


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the ids of the special tokens of a tokenizer of transformers, or of its substitute."""
    return {token.content: id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
