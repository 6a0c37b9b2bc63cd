"""The process that pushes, on its own: what comes from the engine broken does not go on."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from learnloop_service.app.model_registry.pushes.child import NotFetched, _fetched
from learnloop_service.app.model_registry.pushes.s3 import S3Target, upload
from tests.fakes.answering import Answer, answering
from tests.fakes.s3_server import s3_server

FILES = {"model.safetensors": b"weights", "config.json": b"{}"}


def _tar(files: Mapping[str, bytes] = FILES) -> bytes:
    """A checkpoint as the engine sends it, with the manifest of FILES."""
    manifest = {name: {"sha256": hashlib.sha256(content).hexdigest()} for name, content in FILES.items()}
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, content in {**files, "manifest.json": json.dumps({"files": manifest}).encode()}.items():
            info = tarfile.TarInfo(f"agent-step1/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return written.getvalue()


def _engine(status: int, body: bytes) -> Answer:
    return status, {}, body


@pytest.mark.parametrize(
    ("status", "body", "expected", "words"),
    [
        (200, _tar({**FILES, "config.json": b"[]"}), 409, "config.json differs from its manifest"),
        (200, _tar({"config.json": b"{}"}), 409, "do not match its manifest"),
        (200, _tar({**FILES, "more.txt": b""}), 409, "do not match its manifest"),
        (200, _tar()[:1800], 503, "was not transferred completely"),
        (410, b'{"error": {"message": "it is torn"}}', 409, "it is torn"),
        (500, b"oh", 503, "the engine answered 500"),
    ],
)
def test_what_is_not_whole(tmp_path: Path, status: int, body: bytes, expected: int, words: str) -> None:
    with answering(lambda *_: _engine(status, body)) as url, pytest.raises(NotFetched, match=words) as refused:
        _fetched(f"{url}/export", "key", tmp_path)
    assert refused.value.status == expected


def test_what_is_whole(tmp_path: Path) -> None:
    with answering(lambda *_: _engine(200, _tar())) as url:
        files = _fetched(f"{url}/export", "key", tmp_path)
    assert {path.name for path in files.iterdir()} == {*FILES, "manifest.json"}


def test_nobody_there(tmp_path: Path) -> None:
    with answering(lambda *_: _engine(200, b"")) as url:
        pass
    with pytest.raises(NotFetched, match="was not transferred completely") as refused:
        _fetched(f"{url}/export", "key", tmp_path)
    assert refused.value.status == 503


def test_a_large_file_goes_in_parts(tmp_path: Path) -> None:
    content = bytes(range(256)) * (36 << 12)
    (tmp_path / "model.safetensors").write_bytes(content)
    (tmp_path / "manifest.json").write_text("whole")
    with s3_server() as store:
        upload(tmp_path, S3Target(store.url, store.bucket, "eu-west-1", store.key_id, store.secret, "a/b"))
        assert store.objects == {"a/b/model.safetensors": content, "a/b/manifest.json": b"whole"}
    parts = [("a/b/model.safetensors", size) for size in (16 << 20, 16 << 20, 4 << 20)]
    assert sorted(store.puts[1:-1]) == sorted(parts)
    assert [store.puts[0], store.puts[-1]] == [("a/b/manifest.json", 2), ("a/b/manifest.json", 5)]
