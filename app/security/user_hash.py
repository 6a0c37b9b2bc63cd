"""Hashes the keys by which requests name users, so that the service never stores or logs them."""

import hmac
from hashlib import sha256


class UserHasher:
    """Hashes with a key that is derived from the service's own, so that without it a hash does not say whose it is."""

    def __init__(self, service_key: bytes) -> None:
        self._key = sha256(b"learnloop users\0" + service_key).digest()

    def hash_of(self, user: str) -> str:
        """Return the HMAC-SHA-256 of the user's key, as 64 hexadecimal digits."""
        return hmac.digest(self._key, user.encode(), "sha256").hex()
