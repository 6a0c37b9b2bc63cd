"""Writes safetensors files, byte-identical to safetensors' `save_file`, with plain writes.

`save_file` maps the file into memory, where each page is a fault, and takes half as much processor time again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from learnloop_service.training.engine.memory import downloading

_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""Type names, in the order in which a file holds tensors of these types."""
_ALIGNMENT = 8
_SMALL_BYTES = 1 << 20
"""Larger pieces are hashed while they are written, smaller ones before."""
FETCHED_BYTES = 1 << 26
"""Largest number of bytes to copy from a GPU at a time."""


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> str:
    """Write tensors of 16 or 32 bits from any device, and return the file's SHA-256 in hexadecimal. While a large
    file is written, another thread runs fsync, so that a later one has less to wait for. Raises OSError.

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
    text = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(text)
    with path.open("wb") as file, ThreadPoolExecutor(1, "hash") as hashing, ThreadPoolExecutor(1, "sync") as syncing:
        unsent = file.write(text)
        synced = Future[None]()
        synced.set_result(None)
        for piece in _fetched([tensor for _, tensor in ordered]):
            data = piece.numpy().data
            if len(data) > _SMALL_BYTES:
                hashed = hashing.submit(digest.update, data)
                file.write(data)
                hashed.result()
                unsent += len(data)
                if unsent >= FETCHED_BYTES and synced.done():
                    synced.result()  # an error is reported once, and not to the fsync at the end
                    synced, unsent = syncing.submit(os.fsync, file.fileno()), 0
            else:
                digest.update(data)
                file.write(data)
        synced.result()
    return digest.hexdigest()


def can_write(tensors: Iterable[Tensor]) -> bool:
    """Whether `write_tensors` knows the types of all these tensors."""
    return all(tensor.dtype in _TYPES for tensor in tensors)


def _fetched(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield the tensors' bytes [n], uint8, on the CPU. Small tensors on a GPU are copied together, because each
    transfer waits for the GPU's running work, and large ones in pieces, because they pass through memory that the
    system cannot swap out."""
    batch: list[Tensor] = []
    size = 0
    for tensor in tensors:
        for piece in torch.split(tensor.detach().reshape(-1).view(torch.uint8), FETCHED_BYTES):
            if size + len(piece) > FETCHED_BYTES:
                yield from _downloaded(batch)
                batch, size = [], 0
            batch.append(piece)
            size += len(piece)
    yield from _downloaded(batch)


def _downloaded(pieces: list[Tensor]) -> list[Tensor]:
    on_cpu = list(pieces)
    for device in {piece.device for piece in pieces if piece.device.type != "cpu"}:
        numbers = [number for number, piece in enumerate(pieces) if piece.device == device]
        parts = [pieces[number] for number in numbers]
        [together] = downloading(torch.cat(parts))()
        copies = torch.split(torch.from_numpy(together), [len(part) for part in parts])
        for number, copy in zip(numbers, copies, strict=True):
            on_cpu[number] = copy
    return on_cpu
