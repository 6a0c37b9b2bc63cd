"""Writes safetensors files, in the bytes of safetensors' own `save_file`, by plain writes.

That one maps the file into memory, where each page is a fault: half as much processor time again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""In the order in which tensors of these types are in the file."""
_ALIGNMENT = 8
FETCHED_BYTES = 1 << 26
"""About what is brought from a GPU at a time."""


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors of 16 or 32 bits, on whatever device. Raises OSError.

    The format: https://huggingface.co/docs/safetensors/index#format
    """
    types = list(_TYPES)
    ordered = sorted(tensors.items(), key=lambda item: (types.index(item[1].dtype), item[0]))
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.nbytes
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for each in _fetched([tensor for _, tensor in ordered]):
            file.write(each.numpy().data)


def _fetched(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Their bytes [n], uint8, on the CPU. Of a GPU's many come together: each alone would wait for what it computes."""
    held: list[Tensor] = []
    size = 0
    for tensor in tensors:
        held.append(tensor.detach().reshape(-1).view(torch.uint8))
        size += tensor.nbytes
        if size > FETCHED_BYTES:
            yield from _downloaded(held)
            held, size = [], 0
    yield from _downloaded(held)


def _downloaded(tensors: list[Tensor]) -> list[Tensor]:
    found = list(tensors)
    for device in {each.device for each in tensors if each.device.type != "cpu"}:
        own = [number for number, each in enumerate(tensors) if each.device == device]
        parts = [tensors[number] for number in own]
        together = torch.split(torch.cat(parts).cpu(), [part.numel() for part in parts])
        for number, part in zip(own, together, strict=True):
            found[number] = part
    return found
