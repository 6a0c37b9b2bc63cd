"""Base models as files: those in a data directory, and whether a directory holds one that can be loaded.

Files have the Hugging Face layout: config, weights and tokenizer. Only headers and sizes of the weights are read.
"""

import json
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from environment.json_type import Json

_MAX_HEADER = 100 << 20
"""Maximum size of a safetensors header, in bytes, as set by the format."""
_ADDED_FOLDER = "bases"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def added_base_models(data_dir: Path) -> dict[str, Path]:
    """Return the directories of the base models that `learnloop bases add` added, by name. Incomplete ones, left by a
    killed command, have hidden names and are skipped."""
    places = sorted((data_dir / _ADDED_FOLDER).glob("[!.]*/config.json"))
    return {place.parent.name: place.parent for place in places}


def is_added_base_model(data_dir: Path, name: str) -> bool:
    """Return whether `added_base_models` includes a name."""
    return "/" not in name and not name.startswith(".") and (place_of_added(data_dir, name) / "config.json").exists()


def place_of_added(data_dir: Path, name: str) -> Path:
    """Return the directory for an added base model."""
    return data_dir / _ADDED_FOLDER / name


def base_model_fault(directory: Path) -> str | None:
    """Return which file is faulty and why, or None. The result is cached until a file changes."""
    try:
        files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in directory.iterdir())
    except OSError as error:
        return f"{directory.name}: {error.strerror}"
    return _fault(directory, tuple(files))


@lru_cache(256)
def _fault(directory: Path, files: tuple[tuple[str, int, int], ...]) -> str | None:
    sizes = {name: size for name, size, _ in files}
    try:
        _check_config(directory)
        for name in _weights(directory, sizes):
            _check_weights(directory / name, sizes)
        _check_tokenizer(directory, sizes)
    except _Fault as fault:
        return str(fault)
    except OSError as error:
        return f"{Path(error.filename).name}: {error.strerror}"
    return None


class _Fault(Exception):
    """Names a faulty file and the reason. It omits the path, because tenants can see the message."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path.name}: {why}")


def _check_config(directory: Path) -> None:
    config = _object(directory / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise _Fault(directory / "config.json", "it has no model_type")


def _weights(directory: Path, sizes: dict[str, int]) -> Iterator[str]:
    index = directory / "model.safetensors.index.json"
    if index.name in sizes:
        shards = _object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise _Fault(index, "it has no weight_map")
        return iter(sorted(set(map(str, shards.values()))))
    found = [name for name in sizes if name.endswith(".safetensors")]
    if not found:
        raise _Fault(directory, "there are no weights (*.safetensors)")
    return iter(found)


def _check_weights(path: Path, sizes: dict[str, int]) -> None:
    if path.name not in sizes:
        raise _Fault(path, "the index names this file, and it is missing")
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= _MAX_HEADER:
            raise _Fault(path, "it is not a safetensors file")
        header = file.read(length)
    try:
        tensors = {name: tensor for name, tensor in json.loads(header).items() if name != "__metadata__"}
        end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError, IndexError):
        raise _Fault(path, "its header is damaged, or the file is cut off in it") from None
    missing = 8 + length + end - sizes[path.name]
    if missing > 0:
        raise _Fault(path, f"it is cut off: {missing} bytes are missing at its end")


def _check_tokenizer(directory: Path, sizes: dict[str, int]) -> None:
    if not any(name in sizes for name in _TOKENIZERS):
        raise _Fault(directory, f"there is no tokenizer ({', '.join(_TOKENIZERS)})")
    if "tokenizer.json" in sizes and "model" not in _object(directory / "tokenizer.json"):
        raise _Fault(directory / "tokenizer.json", "it has no model")
    if "tokenizer_config.json" in sizes:
        _object(directory / "tokenizer_config.json")


def _object(path: Path) -> dict[str, Json]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _Fault(path, "it is missing") from None
    except (ValueError, RecursionError) as error:
        raise _Fault(path, f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _Fault(path, "it is not a JSON object")
    return value
