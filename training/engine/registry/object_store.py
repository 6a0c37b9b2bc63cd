"""Object stores with S3's semantics: byte strings by key, each written atomically by one request, with conditional
creation that only one writer can win."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class BadStore(ValueError):
    """The store cannot be used under the URL given."""


class StoreUnavailable(Exception):
    """The store did not carry out the operation. A later attempt can succeed."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's entry in a listing. `tag` changes when the content does."""

    key: str
    bytes: int
    tag: str
    modified: datetime


class ObjectStore(Protocol):
    """An object store. All methods can be called from any thread and raise StoreUnavailable."""

    @property
    def url(self) -> str:
        """The store's URL without secrets."""

    def get(self, key: str) -> bytes | None:
        """Return the content, or None if there is no such object."""

    def put(self, key: str, content: bytes) -> None:
        """Write the object, replacing an existing one."""

    def create(self, key: str, content: bytes) -> bool:
        """Write the object unless it exists. Of several concurrent writers, exactly one gets True."""

    def list(self, prefix: str) -> list[StoredObject]:
        """Return all objects whose keys begin with `prefix`, ordered by key."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects. Keys that do not exist are ignored."""
