"""Sets aside checkpoints that ART's local backend had not finished when it died.

It takes the highest numbered directory for the model's step, whatever is in it: an empty `checkpoints/0007` makes it 7.
"""

import json
from pathlib import Path

ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def quarantine(checkpoints: Path) -> list[Path]:
    """Rename the torn ones of a model's checkpoints to `*.torn`; returns where they are now. No training may run."""
    if not checkpoints.is_dir():
        return []
    numbered = (each for each in sorted(checkpoints.iterdir()) if each.is_dir() and each.name.isdigit())
    return [_set_aside(each) for each in numbered if not is_whole(each)]


def is_whole(checkpoint: Path) -> bool:
    """Whether a LoRA checkpoint has its config, and all the tensors that its header names."""
    try:
        config = json.loads((checkpoint / CONFIG).read_bytes())
        return isinstance(config, dict) and _is_whole_file(checkpoint / ADAPTER)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # JSON of any shape may be in there
        return False


def _is_whole_file(adapter: Path) -> bool:
    """A safetensors file: the header's length in 8 bytes, the header as JSON, and the tensors up to the last offset."""
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
