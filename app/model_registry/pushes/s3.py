"""Uploads a folder to an S3-compatible store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from learnloop_service.app.model_registry.pushes.destination import DestinationKind, require_library, require_settings
from learnloop_service.app.settings import Settings
from learnloop_service.environment.json_type import Json

_MARK = "manifest.json"
_PART_BYTES = 16 << 20
_RETRIES = 4
_RETRY_TIMEOUT = timedelta(minutes=2)
"""Time limit of one request including its retries."""


@dataclass(frozen=True, slots=True)
class S3Target:
    """Objects in a bucket whose keys begin with `prefix` and a slash. `endpoint` None: Amazon S3."""

    endpoint: str | None
    bucket: str
    region: str
    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    prefix: str


def s3_target(settings: Settings, project: str, prefix: str) -> S3Target:
    """Return a place in the bucket under the operator's prefix and the project's name. Raises Conflict."""
    require_settings(
        {
            "LEARNLOOP_S3_BUCKET": settings.s3_bucket,
            "LEARNLOOP_S3_KEY_ID": settings.s3_key_id,
            "LEARNLOOP_S3_SECRET": settings.s3_secret,
        }
    )
    require_library("obstore")
    assert settings.s3_bucket is not None
    assert settings.s3_key_id is not None
    assert settings.s3_secret is not None
    return S3Target(
        endpoint=None if settings.s3_endpoint is None else str(settings.s3_endpoint).rstrip("/"),
        bucket=settings.s3_bucket,
        region=settings.s3_region,
        key_id=settings.s3_key_id.get_secret_value(),
        secret=settings.s3_secret.get_secret_value(),
        prefix="/".join(part for part in (settings.s3_prefix, project, prefix) if part),
    )


def upload(files: Path, target: S3Target) -> str:
    """Upload each file as an object and return their common address.

    The manifest is emptied first and uploaded last, so a non-empty manifest means that the checkpoint is complete. It
    is not deleted, so the key needs no permission except to put objects.

    Raises obstore's errors, which contain the store's message.
    """
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        target.bucket,
        prefix=target.prefix,
        endpoint=target.endpoint,
        region=target.region,
        access_key_id=target.key_id,
        secret_access_key=target.secret,
        client_options={"allow_http": (target.endpoint or "").startswith("http://"), "timeout": timedelta(minutes=2)},
        retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
    )
    obstore.put(store, _MARK, b"{}")
    names = sorted(path.name for path in files.iterdir() if path.name != _MARK)
    for name in (*names, _MARK):
        obstore.put(store, name, files / name, chunk_size=_PART_BYTES)
    return f"s3://{target.bucket}/{target.prefix}"


def _upload(files: Path, target: Mapping[str, Json], _message: str) -> tuple[str, str | None]:
    return upload(files, S3Target(**target)), None


STORE = DestinationKind(s3_target, _upload)
