"""Single rows of a base model's embedding and output head, read from its files without the rest of them."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight")
HEADS = ("lm_head.weight", "embed_out.weight")
_COMPARED = 512
_ALIKE = 0.99
"""Mean cosine of rows above which two matrices are the same one, quantized twice. Those of 5 and of 8 bits have 0.998;
an embedding and a head that were trained apart have below 0.5."""


class MatrixRows:
    """The rows of a matrix [tokens, hidden] in a safetensors file."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        shape: list[int] = matrix.get_shape()
        self.count = shape[0]
        self.size = math.prod(shape)

    def at(self, ids: Sequence[int]) -> Tensor:
        """Return the rows of these ids in float32 [ids, hidden]. Ids past the end are an IndexError."""
        if not all(0 <= row < self.count for row in ids):
            raise IndexError(f"the matrix has {self.count} rows")
        return torch.cat([self._matrix[row : row + 1] for row in ids]).float()


@contextmanager
def open_rows(directory: Path, names: Sequence[str]) -> Iterator[MatrixRows | None]:
    """Yield the rows of the first of these matrices that the model in `directory` has, or None."""
    with ExitStack() as files:
        for path in sorted(directory.glob("*.safetensors")):
            file = files.enter_context(safe_open(path, "pt"))
            for name in names:
                if name in file.keys():  # noqa: SIM118 - it is no dict
                    yield MatrixRows(file.get_slice(name))
                    return
        yield None


def is_repeated(head: MatrixRows | None, embedding: MatrixRows | None) -> bool:
    """Return whether a stored head is the embedding again, exactly or up to its quantization. Compares at most 512
    rows."""
    if head is None or embedding is None or head.count != embedding.count:
        return False
    ids = sorted({row * head.count // _COMPARED for row in range(_COMPARED)})
    one, other = head.at(ids), embedding.at(ids)
    if one.shape != other.shape:
        return False
    if torch.equal(one, other):
        return True
    used = (one.norm(dim=1) > 0) & (other.norm(dim=1) > 0)
    if not used.any():
        return False
    return float(torch.cosine_similarity(one[used], other[used]).mean()) >= _ALIKE


def is_tied(directory: Path) -> bool:
    """Return whether the config says that the head is the embedding."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return bool({**config, **(config.get("text_config") or {})}.get("tie_word_embeddings", False))
