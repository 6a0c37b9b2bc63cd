"""Encrypts secrets that must be readable later, such as webhook signing secrets, for the database.

The cipher is AES-256-GCM. The key is derived from LEARNLOOP_SECRET_KEY, or from the file `secret.key` in the data
directory, which is created if it is missing. Services that share a database need the same key.
"""

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

_VERSION = b"\x01"
_NONCE_BYTES = 12
_KEY_BYTES = 32


class SecretUnreadable(Exception):
    """The stored secret was encrypted with another key, or for another owner."""


class SecretBox:
    """Encrypts and decrypts with one key."""

    def __init__(self, key: bytes) -> None:
        """`key` can have any form, but must have enough entropy."""
        self._cipher = AESGCM(sha256(b"learnloop secrets\0" + key).digest())

    def seal(self, secret: str, owner: str) -> bytes:
        """Encrypt the secret for `owner`, which names what it belongs to. It cannot be decrypted for another owner."""
        nonce = os.urandom(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, secret.encode(), owner.encode())

    def open(self, sealed: bytes, owner: str) -> str:
        """Decrypt a secret. Raises SecretUnreadable."""
        nonce, encrypted = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            if sealed[:1] != _VERSION:
                raise ValueError
            return self._cipher.decrypt(nonce, encrypted, owner.encode()).decode()
        except (InvalidTag, ValueError):
            raise SecretUnreadable("the secret was stored with another key") from None


def secret_box(secret_key: SecretStr | None, data_dir: Path) -> SecretBox:
    """Return the secret box of a service. Raises OSError if the key file can be neither read nor created."""
    return SecretBox(service_key(secret_key, data_dir))


def service_key(secret_key: SecretStr | None, data_dir: Path) -> bytes:
    """Return the key of a service, from which others are derived. Raises OSError as `secret_box` does."""
    return _key_in(data_dir) if secret_key is None else secret_key.get_secret_value().encode()


def _key_in(directory: Path) -> bytes:
    path = directory / "secret.key"
    with suppress(FileNotFoundError):
        return path.read_bytes()
    # The file is readable by its owner only, has its final name only once it is complete, and never replaces another's.
    handle, name = tempfile.mkstemp(dir=directory, prefix="secret.key.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(os.urandom(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)  # noqa: PTH108 - the name that mkstemp gave
    return path.read_bytes()
