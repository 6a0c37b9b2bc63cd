"""An S3-compatible store. Endpoint, region and keys are taken from the usual environment variables (AWS_ENDPOINT_URL,
AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN) or from the machine's role."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from learnloop_service.environment.installation import install_command
from learnloop_service.training.engine.registry.object_store import BadStore, StoredObject, StoreUnavailable

_REQUEST_TIMEOUT = timedelta(minutes=1)
_CONNECT_TIMEOUT = timedelta(seconds=5)
_RETRIES = 10
"""Retries of a request. With their growing delays they last about two minutes, because a training step is at stake."""
_LIST_RETRIES = 2
"""Retries of a listing. They are few because a caller is waiting for a model, and stale knowledge often suffices."""
_RETRY_TIMEOUT = timedelta(minutes=3)
"""Longest time for one request including its retries."""


class S3Store:
    """Objects below a prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str) -> None:
        """Raises BadStore if the environment's settings cannot be used."""
        try:
            import obstore.store
        except ImportError:
            raise BadStore(f"a checkpoint store on S3 needs the extra `s3`: {install_command('s3')}") from None
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")

        def client(retries: int) -> "obstore.store.S3Store":
            return obstore.store.S3Store(
                bucket,
                prefix=prefix or None,
                endpoint=endpoint,
                client_options={
                    "allow_http": (endpoint or "").startswith("http://"),
                    "timeout": _REQUEST_TIMEOUT,
                    "connect_timeout": _CONNECT_TIMEOUT,
                },
                retry_config={"max_retries": retries, "retry_timeout": _RETRY_TIMEOUT},
            )

        try:
            self._store, self._lister = client(_RETRIES), client(_LIST_RETRIES)
        except Exception as error:  # anything that the library finds wrong with the environment's values
            raise BadStore(f"{self.url}: {_first_line(error)}") from None

    def get(self, key: str) -> bytes | None:
        import obstore

        with self._unavailable():
            try:
                return bytes(obstore.get(self._store, key).bytes())
            except FileNotFoundError:
                return None

    def put(self, key: str, content: bytes) -> None:
        import obstore

        with self._unavailable():
            obstore.put(self._store, key, content, use_multipart=False)

    def create(self, key: str, content: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._unavailable():
            try:
                obstore.put(self._store, key, content, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def list(self, prefix: str) -> list[StoredObject]:
        import obstore

        # The library only accepts prefixes that end at a slash.
        directory = prefix.rpartition("/")[0]
        with self._unavailable():
            listed = [entry for page in obstore.list(self._lister, directory or None) for entry in page]
        return sorted(
            (_stored(entry) for entry in listed if entry["path"].startswith(prefix)), key=lambda stored: stored.key
        )

    def delete(self, keys: Iterable[str]) -> None:
        import obstore

        if keys := list(keys):
            with self._unavailable():
                obstore.delete(self._store, keys)

    @contextmanager
    def _unavailable(self) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError) as error:
            raise StoreUnavailable(f"the checkpoint store {self.url}: {_first_line(error)}") from error


def _stored(about: Any) -> StoredObject:
    modified = about["last_modified"]
    return StoredObject(about["path"], about["size"], about["e_tag"] or modified.isoformat(), modified)


def _first_line(error: Exception) -> str:
    """Return the error's first line, which says what went wrong; the following ones are the library's internal
    structures."""
    return str(error).partition("\n")[0]
