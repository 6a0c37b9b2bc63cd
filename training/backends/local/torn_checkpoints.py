"""Sets aside checkpoints that ART's local backend had not finished writing when it died.

ART takes the highest numbered directory as the model's step, regardless of its contents: an empty `checkpoints/0007`
makes it 7.
"""

import json
from pathlib import Path

ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def quarantine(checkpoints: Path) -> list[Path]:
    """Rename torn checkpoints of a model to `*.torn`, and return their new paths. Must not run during training."""
    if not checkpoints.is_dir():
        return []
    numbered = (
        checkpoint for checkpoint in sorted(checkpoints.iterdir()) if checkpoint.is_dir() and checkpoint.name.isdigit()
    )
    return [_set_aside(checkpoint) for checkpoint in numbered if not is_whole(checkpoint)]


def is_whole(checkpoint: Path) -> bool:
    """Return whether a LoRA checkpoint has its config and all the tensors in the header of its weights."""
    try:
        config = json.loads((checkpoint / CONFIG).read_bytes())
        return isinstance(config, dict) and _is_whole_file(checkpoint / ADAPTER)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # the file can contain any JSON
        return False


def _is_whole_file(adapter: Path) -> bool:
    """Return whether a safetensors file is complete: 8 bytes with the header's length, the header as JSON, and tensors
    up to the last offset."""
    size = adapter.stat().st_size
    with adapter.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= size - 8:
            return False
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    return bool(ends) and size == 8 + length + max(ends)


def _set_aside(checkpoint: Path) -> Path:
    aside, number = checkpoint.with_name(f"{checkpoint.name}.torn"), 1
    while aside.exists():
        number += 1
        aside = checkpoint.with_name(f"{checkpoint.name}.{number}.torn")
    return checkpoint.rename(aside)
