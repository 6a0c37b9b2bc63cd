"""The code of packages as a hash: what it computed before, it computes again."""

import hashlib
from functools import cache
from importlib.resources import files
from pathlib import Path

_READ = frozenset({".py", ".txt", ".jinja"})
"""Modules, prompts, lists of words and templates."""


@cache
def source_hash(*packages: str) -> str:
    """Hex SHA-256 of what these packages are made of. Reads all their files, once in a process."""
    digest = hashlib.sha256()
    for package in packages:
        root = Path(str(files(package)))
        for path in sorted(path for path in root.rglob("*") if path.suffix in _READ):
            content = path.read_bytes()
            digest.update(f"{package}/{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
