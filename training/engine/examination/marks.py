"""Which special tokens of a chat template the base model was never trained on.

A token that never was a target keeps, in the output head, the vector that it shares with ids that no text uses. The
model cannot write it, however often its template asks for it, and a LoRA leaves the head as it is.
"""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from learnloop_service.training.engine.examination.rows import MatrixRows

TOOL_MARK = re.compile(r"tool|function|python_tag", re.IGNORECASE)
"""Special tokens around tool calls and their results. They can become ordinary text; others, such as `<|im_start|>`,
shape every conversation."""
_RESERVED = re.compile(r"reserved|unused|extra_id|control_\d|dummy|placeholder", re.IGNORECASE)
_SAME = 0.9999
"""Cosine from which two rows are the same vector. Equal rows stay equal when they are quantized."""
_REFERENCES = 64


def untrained(rows: MatrixRows, added: Mapping[str, int], tokens: int, rendered: str) -> tuple[str, ...]:
    """Return the added tokens that occur in `rendered` and whose rows were not trained, in order of their ids.

    `added` has the id of each added token, and ids from `tokens` on belong to no token; `rendered` is what the chat
    template can write. Without unused ids to compare with, tokens whose rows equal that of another added token are
    taken as untrained.
    """
    used = sorted(
        (token for token, id in added.items() if token in rendered and id < rows.count), key=added.__getitem__
    )
    if not used:
        return ()
    used_rows = rows.at([added[token] for token in used])
    references = _unused_ids(rows, added, tokens, rendered)
    if references:
        same = _is_same(used_rows, rows.at(references)).any(dim=1)
    else:
        others = sorted(id for id in added.values() if id < rows.count)
        equal = _is_same(used_rows, rows.at(others))
        same = equal.sum(dim=1) > 1  # each equals itself
    return tuple(token for token, is_same in zip(used, same.tolist(), strict=True) if is_same)


def _unused_ids(rows: MatrixRows, added: Mapping[str, int], tokens: int, rendered: str) -> Sequence[int]:
    """Return ids that no text has: beyond the tokenizer's vocabulary, or of reserved tokens."""
    reserved = [id for token, id in added.items() if _RESERVED.search(token) and token not in rendered]
    beyond = range(tokens, rows.count)
    usable = sorted({id for id in (*reserved, *beyond) if id < rows.count})
    return usable[:: max(1, len(usable) // _REFERENCES)][:_REFERENCES]


def _is_same(rows: Tensor, others: Tensor) -> Tensor:
    """Return for each pair whether the vectors are the same [rows, others]. A row of zeros equals only such rows."""
    cosines = torch.nn.functional.normalize(rows) @ torch.nn.functional.normalize(others).T
    zero, others_zero = rows.norm(dim=1) == 0, others.norm(dim=1) == 0
    same: Tensor = (cosines >= _SAME) | (zero[:, None] & others_zero[None, :])
    return same
