"""Stored secrets can be read by whoever has the key, for what they were stored for."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from learnloop_service.app.security.secret_box import SecretBox, SecretUnreadable, secret_box


def test_a_secret_comes_back_and_is_not_to_be_seen() -> None:
    box = SecretBox(os.urandom(32))
    sealed = box.seal("whsec_canary", "one")
    assert box.open(sealed, "one") == "whsec_canary"
    assert b"canary" not in sealed
    assert sealed != box.seal("whsec_canary", "one")


def test_another_owner_another_key_and_changed_bytes_do_not_read_it() -> None:
    box = SecretBox(b"k" * 32)
    sealed = box.seal("secret", "one")
    changed = [sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :] for at in range(len(sealed))]
    for bad in [*changed, sealed[:5], b""]:
        with pytest.raises(SecretUnreadable):
            box.open(bad, "one")
    with pytest.raises(SecretUnreadable):
        box.open(sealed, "two")
    with pytest.raises(SecretUnreadable):
        SecretBox(b"j" * 32).open(sealed, "one")


def test_the_key_file_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        boxes = list(threads.map(lambda _: secret_box(None, tmp_path), range(8)))
    sealed = boxes[0].seal("secret", "one")
    assert all(box.open(sealed, "one") == "secret" for box in boxes)
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


def test_the_setting_takes_the_files_place(tmp_path: Path) -> None:
    key = SecretStr("k" * 32)
    sealed = secret_box(key, tmp_path / "a").seal("secret", "one")
    assert secret_box(key, tmp_path / "b").open(sealed, "one") == "secret"
    assert list(tmp_path.iterdir()) == []
