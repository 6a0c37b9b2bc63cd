"""Object stores, as S3 has them: byte strings by key, each written whole by one request, and creation that only one
writer can win.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class BadStore(ValueError):
    """The store cannot be used as it was named."""


class StoreUnavailable(Exception):
    """The store did not do what it was asked; it may later."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing says of an object. `tag` is another one when the content is."""

    key: str
    bytes: int
    tag: str
    modified: datetime


class ObjectStore(Protocol):
    """All methods may be called from any thread, and raise StoreUnavailable."""

    @property
    def url(self) -> str:
        """The store's name, without secrets."""

    def get(self, key: str) -> bytes | None:
        """The content; None if there is no such object."""

    def put(self, key: str, content: bytes) -> None:
        """Write the object, over one that is there."""

    def create(self, key: str, content: bytes) -> bool:
        """Write the object unless there is one: of all who try at the same time one gets True."""

    def list(self, prefix: str) -> list[StoredObject]:
        """All objects whose keys begin with `prefix`, by key."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects; ones that are not there are no error."""
