"""Maps URLs to object stores."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from learnloop_service.training.engine.registry.directory_store import DirectoryStore
from learnloop_service.training.engine.registry.object_store import BadStore, ObjectStore
from learnloop_service.training.engine.registry.s3_store import S3Store


def open_store(url: str) -> ObjectStore:
    """Open `s3://BUCKET/PREFIX` or `file:///DIRECTORY` without checking that it can be reached. Raises BadStore."""
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username is not None:
        raise BadStore(f"the checkpoint store {parts.scheme}://... must be named without user, query and fragment")
    if parts.scheme == "s3" and parts.netloc:
        return S3Store(parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return DirectoryStore(Path(unquote(parts.path)))
    raise BadStore(f"{url!r} is no checkpoint store: s3://BUCKET/PREFIX, or file:///DIRECTORY")
