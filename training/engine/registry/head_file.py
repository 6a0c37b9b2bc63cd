"""Stores a model's embedding once where its files have it a second time, as output head."""

import json
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_INDEX = "model.safetensors.index.json"


def tie_head(directory: Path) -> bool:
    """Keep the head's values under the embedding's name, and return whether the files had both.

    The head's are the more exact ones where the two were quantized differently. The files must be intact.
    """
    headers = {path: _header(path) for path in sorted(directory.glob("*.safetensors"))}
    held = {name: path for path, header in headers.items() for name in header if name in (_EMBEDDING, _HEAD)}
    if held.keys() != {_EMBEDDING, _HEAD}:
        return False
    for path in {*held.values()}:
        _write(path, headers[path])
    config = directory / "config.json"
    _store(config, {**json.loads(config.read_text(encoding="utf-8")), "tie_word_embeddings": True})
    if (index := directory / _INDEX).is_file():
        document = json.loads(index.read_text(encoding="utf-8"))
        weight_map = document["weight_map"]
        weight_map[_EMBEDDING] = weight_map.pop(_HEAD)
        _store(index, document)
    return True


def _header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    return header


def _write(path: Path, header: Mapping[str, Any]) -> None:
    """Write a file again without its embedding, and with its head as embedding."""
    kept = {name: tensor for name, tensor in header.items() if name not in ("__metadata__", _EMBEDDING)}
    ranges = sorted((tensor["data_offsets"][0], tensor["data_offsets"][1], name) for name, tensor in kept.items())
    new: dict[str, Any] = {"__metadata__": header["__metadata__"]} if "__metadata__" in header else {}
    position = 0
    for start, end, name in ranges:
        stored = {**kept[name], "data_offsets": [position, position + end - start]}
        new[_EMBEDDING if name == _HEAD else name] = stored
        position += end - start
    text = json.dumps(new, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with path.open("rb") as source, unfinished.open("wb") as target:
        (length,) = struct.unpack("<Q", source.read(8))
        target.write(struct.pack("<Q", len(text)) + text)
        for start, end, _ in ranges:
            source.seek(8 + length + start)
            for piece in _pieces(source, end - start):
                target.write(piece)
    shutil.copymode(path, unfinished)
    unfinished.replace(path)


def _pieces(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size and (piece := file.read(min(size, 16 << 20))):
        size -= len(piece)
        yield piece


def _store(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
