"""Uploads a folder to an S3-compatible store."""

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

_MARK = "manifest.json"
_PART_BYTES = 16 << 20
_RETRIES = 4
_RETRY_TIMEOUT = timedelta(minutes=2)
"""Of one request with its repetitions."""


@dataclass(frozen=True, slots=True)
class S3Target:
    """Objects whose keys begin with `prefix` and a slash, in a bucket. `endpoint` None: Amazon's own."""

    endpoint: str | None
    bucket: str
    region: str
    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    prefix: str


def upload(files: Path, target: S3Target) -> str:
    """An object for each file; their address. The manifest is emptied first and put last: beside one that is not
    empty the checkpoint is whole. (Emptied, not deleted: so the key needs leave to put objects and no other.)

    Raises what obstore raises: its errors hold the store's words.
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
