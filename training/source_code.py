"""A hash of the code of packages, to tell whether they can repeat an earlier computation."""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

_HASHED_SUFFIXES = frozenset({".css", ".jinja", ".js", ".py", ".txt"})
"""Modules, prompts, word lists, templates and style sheets."""


@cache
def source_hash(*packages: str) -> str:
    """Return the SHA-256 of the files in these packages, in hex. Reads all files, once per process."""
    digest = hashlib.sha256()
    for package in packages:
        root = Path(str(files(package)))
        for path in sorted(path for path in root.rglob("*") if path.suffix in _HASHED_SUFFIXES):
            content = path.read_bytes()
            digest.update(f"{package}/{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
