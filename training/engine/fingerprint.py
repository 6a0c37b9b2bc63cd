"""A hash of everything that determines a model's samples besides the requests: equal hashes mean equal samples."""

import hashlib
import json
import platform
from importlib.metadata import version

from learnloop_service.training.engine.cpu_mode import CPUINFO
from learnloop_service.training.engine.registry.checkpoints import Manifest
from learnloop_service.training.protocol.model_facts import Reproducibility
from learnloop_service.training.source_code import source_hash
from learnloop_service.training.tuning import Tuning

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "llguidance")


def fingerprint(reproducibility: Reproducibility, tuning: Tuning, checkpoint: Manifest) -> str | None:
    """Return the hexadecimal SHA-256 for that checkpoint on this machine. The reason of its `reproducibility` contains
    mode and threads.

    Returns None if samples do not repeat, and for an adapter, because its base's files have no hashes.
    """
    if not reproducibility.reproducible or tuning.mode != "full":
        return None
    facts = {
        "files": {name: digest.sha256 for name, digest in checkpoint.files.items()},
        "code": source_hash("learnloop_service.training"),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "python": platform.python_version(),
        "processor": _processor(),
        "check": reproducibility.reason,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    """Return the processor's model as reported by Linux."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())
