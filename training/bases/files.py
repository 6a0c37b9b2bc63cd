"""Base models as files: those in a data directory, and whether a directory holds one that can be loaded.

Files have the Hugging Face layout: config, weights and tokenizer. Only headers and sizes of the weights are read.
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from learnloop_service.environment.json_type import Json

MAX_TOKENS = 1_000_000
"""Maximum size of a vocabulary. Real ones have up to 300,000 tokens."""
_MAX_HEADER = 16 << 20
"""Maximum size of a safetensors header in bytes, enough for 100,000 tensors. The format allows 100 MB."""
_MAX_JSON = 48 << 20
"""Maximum size of a JSON file in bytes. The largest real tokenizers have 35 MB."""
_MAX_DIMENSIONS, _MAX_EXTENT = 8, 1 << 40
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
"""Bits of an element, by safetensors' name of its type."""
_ATTENTION = frozenset({"full_attention", "sliding_attention", "attention"})
"""Kinds of layers whose state is keys and values of all tokens."""
_ADDED_FOLDER = "bases"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")

_EMBEDDINGS = ("embed_tokens", "wte", "embed_in", "word_embeddings")
TIED = (
    "The embedding and the output head of {base} are one matrix, which an adapter on {names} would take apart: "
    "leave that out of target_modules."
)
_HEADS = ("lm_head", "embed_out")
"""Names of the modules of embeddings and output heads in known model families."""


def added_base_models(data_dir: Path) -> dict[str, Path]:
    """Return the directories of the base models that `learnloop bases add` added, by name. Incomplete ones, left by a
    killed command, have hidden names and are skipped."""
    configs = sorted((data_dir / _ADDED_FOLDER).glob("[!.]*/config.json"))
    return {config.parent.name: config.parent for config in configs}


def is_added_base_model(data_dir: Path, name: str) -> bool:
    """Return whether `added_base_models` includes a name."""
    return "/" not in name and not name.startswith(".") and (place_of_added(data_dir, name) / "config.json").exists()


def place_of_added(data_dir: Path, name: str) -> Path:
    """Return the directory for an added base model."""
    return data_dir / _ADDED_FOLDER / name


def data_dir_of(directory: Path) -> Path:
    """Return the data directory of an added base model, whose own is `directory`."""
    return directory.parents[1]


def base_model_fault(directory: Path) -> str | None:
    """Return which file is faulty and why, or None. The result is cached until a file changes."""
    try:
        if (stray := stray_file(directory)) is not None:
            return stray
        files = fingerprint(directory)
    except OSError as error:
        return f"{directory.name}: {error.strerror}"
    return _fault(directory, files)


def fingerprint(directory: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the name, size and modification time of each file. Raises OSError."""
    return tuple(sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in directory.iterdir()))


def stray_file(directory: Path) -> str | None:
    """Return which entry of the directory is a link that leaves it or a special file, or None. Raises OSError.

    In a snapshot of Hugging Face's cache, `models--NAME/snapshots/REVISION`, links lead to other files of the same
    model, `models--NAME`.
    """
    resolved = directory.resolve()
    root = resolved.parents[1] if resolved.parent.name == "snapshots" and len(resolved.parents) > 1 else resolved
    inside = root if root.name.startswith("models--") else resolved
    for path in sorted(directory.iterdir()):
        if path.is_symlink() and not _leads_into(path, inside):
            return f"{path.name}: it is a link that leaves the directory; copy the files themselves (cp -rL)"
        if not (path.is_file() or path.is_dir() or path.is_symlink()):
            return f"{path.name}: it is neither a file nor a directory"
    return None


def _leads_into(link: Path, directory: Path) -> bool:
    try:
        return link.resolve().is_relative_to(directory)
    except RuntimeError:  # links in a circle
        return False


@lru_cache(256)
def _fault(directory: Path, files: tuple[tuple[str, int, int], ...]) -> str | None:
    sizes = {name: size for name, size, _ in files}
    try:
        config = _checked_config(directory)
        if (foreign := fault_of_layers(_text_config(config).get("layer_types"))) is not None:
            raise _Fault(directory / "config.json", foreign)
        tensors = sum(_check_weights(directory / name, sizes) for name in _weights(directory, sizes))
        _check_layers(directory / "config.json", config, tensors)
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


def _checked_config(directory: Path) -> dict[str, Json]:
    config = _object(directory / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise _Fault(directory / "config.json", "it has no model_type")
    return config


def _text_config(config: dict[str, Json]) -> dict[str, Json]:
    """Return the part of a config that is about the language model."""
    text_config = config.get("text_config")
    return text_config if isinstance(text_config, dict) else config


def fault_of_layers(kinds: Json) -> str | None:
    """Return why the engine cannot sample from a model with layers of these kinds (`layer_types` of its config), as a
    clause, or None."""
    foreign = {str(kind) for kind in kinds} - _ATTENTION if isinstance(kinds, list | tuple) else set()
    if not foreign:
        return None
    return (
        f"its layers of the kind {', '.join(sorted(foreign))} keep another state than the keys and values of all tokens"
    )


def _check_layers(path: Path, config: dict[str, Json], tensors: int) -> None:
    """Raise _Fault for more layers than tensors, because a model is built before its weights are read."""
    layers = _text_config(config).get("num_hidden_layers", 0)
    if not isinstance(layers, int) or layers > tensors:
        raise _Fault(path, f"num_hidden_layers is {str(layers)[:20]}, and the weights have {tensors} tensors")


def _weights(directory: Path, sizes: dict[str, int]) -> Iterator[str]:
    names = {name for name in sizes if name.endswith(".safetensors")}
    index = directory / "model.safetensors.index.json"
    if index.name in sizes:
        shards = _object(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise _Fault(index, "it has no weight_map")
        names |= set(map(str, shards.values()))
        if any("/" in name for name in names):
            raise _Fault(index, "it names files outside of the directory")
    if not names:
        raise _Fault(directory, "there are no weights (*.safetensors)")
    return iter(sorted(names))


def parameter_count(directory: Path) -> int | None:
    """Return the number of parameters by the headers of the weights, or None if the directory has no readable ones."""
    tensors = tensor_shapes(directory)
    return None if tensors is None else sum(math.prod(shape) for shape in tensors.values())


def tensor_shapes(directory: Path) -> dict[str, list[int]] | None:
    """Return the shape of each tensor of the weights by name, or None if the directory has no readable weights."""
    files = sorted(directory.glob("*.safetensors"))
    try:
        headers = [_read_header(path) for path in files]
        return {name: tensor["shape"] for _, header in headers for name, tensor in header.items()} if files else None
    except (_Fault, OSError, ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return None


def tied_modules(directory: Path, names: Sequence[str]) -> list[str]:
    """Return the names that are the embedding or the output head of a base model in which the two are one matrix.

    An adapter on one of them would be trained, sampled and exported as different models.
    """
    ends = [name for name in names if name.rpartition(".")[2] in _EMBEDDINGS + _HEADS]
    if not ends:
        return []
    has_head = any(name.removesuffix(".weight").endswith(_HEADS) for name in tensor_shapes(directory) or ())
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    tied = {**config, **(config.get("text_config") or {})}.get("tie_word_embeddings", not has_head)
    return ends if tied else []


def _check_weights(path: Path, sizes: dict[str, int]) -> int:
    """Return the number of tensors in a file. Raises _Fault if its header does not describe exactly its content."""
    if path.name not in sizes:
        raise _Fault(path, "the index names this file, and it is missing")
    try:
        length, tensors = _read_header(path)
        end = _end_of(tensors)
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError, IndexError):
        raise _Fault(path, "its header is damaged, or the file is cut off in it") from None
    missing = 8 + length + end - sizes[path.name]
    if missing > 0:
        raise _Fault(path, f"it is cut off: {missing} bytes are missing at its end")
    return len(tensors)


def _read_header(path: Path) -> tuple[int, dict[str, Json]]:
    """Return the length of a file's header in bytes, and its tensors by name. Raises _Fault, OSError, and what
    damaged JSON raises: ValueError, RecursionError or AttributeError."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= _MAX_HEADER:
            raise _Fault(path, "it is not a safetensors file")
        header = json.loads(file.read(length))
    return length, {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def _end_of(tensors: Mapping[str, Json]) -> int:
    """Return where the last tensor ends. Raises ValueError, TypeError, KeyError or AttributeError unless the tensors
    follow each other without gaps and have as many bytes as their shapes need."""
    position = 0
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor["data_offsets"]):
        (start, end), shape = tensor["data_offsets"], tensor["shape"]
        extents = all(type(extent) is int and 0 <= extent <= _MAX_EXTENT for extent in shape)
        if start != position or not extents or len(shape) > _MAX_DIMENSIONS:
            raise ValueError
        position += -(-math.prod(shape) * _BITS[tensor["dtype"]] // 8)
        if end != position:
            raise ValueError
    return position


def _check_tokenizer(directory: Path, sizes: dict[str, int]) -> None:
    if not any(name in sizes for name in _TOKENIZERS):
        raise _Fault(directory, f"there is no tokenizer ({', '.join(_TOKENIZERS)})")
    if "tokenizer.json" in sizes:
        _check_vocabulary(directory / "tokenizer.json")
    if "tokenizer_config.json" in sizes:
        _object(directory / "tokenizer_config.json")


def _check_vocabulary(path: Path) -> None:
    tokenizer = _object(path)
    if "model" not in tokenizer:
        raise _Fault(path, "it has no model")
    vocabulary = tokenizer["model"].get("vocab", ()) if isinstance(tokenizer["model"], dict) else ()
    tokens = sum(len(part) for part in (vocabulary, tokenizer.get("added_tokens", ())) if isinstance(part, list | dict))
    if tokens > MAX_TOKENS:
        raise _Fault(path, f"it has {tokens:,} tokens; at most {MAX_TOKENS:,} are allowed")


def _object(path: Path) -> dict[str, Json]:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise _Fault(path, f"it is larger than {_MAX_JSON >> 20} MiB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _Fault(path, "it is missing") from None
    except (ValueError, RecursionError) as error:
        raise _Fault(path, f"it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise _Fault(path, "it is not a JSON object")
    return value
