"""Base models with defects that only an examination finds, planted in tiny random ones."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.fakes.tiny_model import make_tiny_model

MARKS = ("<tool_call>", "</tool_call>")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DOUBLED = 'Write {{\\"name\\": <function>, \\"arguments\\": <object>}}.'
"""An instruction as some templates give it, inside a string of the template."""


def tensors_of(directory: Path) -> dict[str, Tensor]:
    """Return the weights of a base model."""
    return load_file(directory / "model.safetensors")


def save_tensors(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Replace the weights of a base model."""
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def change(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file, which may be missing."""
    document = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**document, **fields}))


def ids_of(directory: Path) -> dict[str, int]:
    """Return the ids of the added tokens."""
    return {
        token["content"]: token["id"]
        for token in json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    }


def with_untrained(directory: Path, tokens: Collection[str] = MARKS, *, spare_ids: int = 16) -> Path:
    """Make a base model in which these tokens, reserved ones and `spare_ids` ids without a token have the same row."""
    make_tiny_model(directory, "qwen2", overrides={"vocab_size": 320 + spare_ids})
    ids, tensors = ids_of(directory), tensors_of(directory)
    rows = [ids[token] for token in tokens] + [id for token, id in ids.items() if "unused" in token]
    rows += range(320, 320 + spare_ids)
    tensors[EMBEDDING][rows] = tensors[EMBEDDING][rows[0]].clone()
    save_tensors(directory, tensors)
    return directory


def with_repeated_head(directory: Path) -> Path:
    """Make a base model whose head is its embedding, stored a second time."""
    make_tiny_model(directory, "llama")
    tensors = tensors_of(directory)
    save_tensors(directory, {**tensors, HEAD: tensors[EMBEDDING].clone()})
    return directory


def with_doubled_braces(directory: Path) -> Path:
    """Make a base model whose template shows calls in doubled braces."""
    make_tiny_model(directory)
    template = directory / "chat_template.jinja"
    template.write_text(f'{{{{- "{DOUBLED}" }}}}\n' + template.read_text())
    return directory
