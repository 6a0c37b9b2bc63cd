"""All that decides a model's samples besides the requests for them, as a hash: equal hashes, equal samples."""

import hashlib
import json
import platform
from importlib.metadata import version

from training.engine.cpu_mode import CPUINFO
from training.engine.registry.checkpoints import Manifest
from training.engine.registry.tuning import Tuning
from training.engine.reproducibility import Reproducibility
from training.source_code import source_hash

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "llguidance")


def fingerprint(found: Reproducibility, tuning: Tuning, checkpoint: Manifest) -> str | None:
    """Hex SHA-256 for that checkpoint on this machine, whose check said `found` (mode and threads are in its reason).

    None where samples do not repeat, and for an adapter: the files of its base have no hashes.
    """
    if not found.reproducible or tuning.mode != "full":
        return None
    facts = {
        "files": {name: digest.sha256 for name, digest in checkpoint.files.items()},
        "code": source_hash("training"),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "processor": _processor(),
        "check": found.reason,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    """Its model, as Linux calls it."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())
