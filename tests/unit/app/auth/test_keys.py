"""How keys look and what is kept of them."""

import base64
import hashlib

from learnloop_service.app.auth.caller import LOCAL, Caller
from learnloop_service.app.auth.keys import caller_with, hash_of, new_key, well_formed
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.tables import ApiKey


def test_a_key_is_a_prefix_and_32_random_bytes() -> None:
    keys = {new_key() for _ in range(1_000)}
    assert len(keys) == 1_000
    for key in keys:
        assert key.startswith("ll_")
        assert len(base64.urlsafe_b64decode(key[3:] + "=")) == 32
        assert well_formed(key)


def test_what_cannot_be_a_key() -> None:
    key = new_key()
    for other in ("", "ll_", key[:-1], key + "A", key + "\n", key.upper(), "sk-" + key[3:], key[:-1] + "="):
        assert not well_formed(other), other


def test_the_hash_is_sha256() -> None:
    assert hash_of("ll_a") == hashlib.sha256(b"ll_a").hexdigest()


def test_a_caller_sees_its_project_only_and_one_without_sees_all() -> None:
    row = ApiKey(prefix="ll_abcdefgh", sha256="a hash", project="mail", scopes=["read"])
    by = {"id": None, "name": None}
    caller = Caller("key:ll_abcdefgh", "mail", frozenset({Scope.READ}), key_sha256="a hash", started_by=by)
    assert caller_with(row) == caller
    assert caller_with(row).sees("mail")
    assert not caller_with(row).sees("sales")
    assert not caller_with(row).sees(None)
    everything = caller_with(ApiKey(prefix="ll_abcdefgh", project="*", scopes=["read"]))
    assert everything.project is None
    assert everything.sees("mail")
    assert everything.sees(None)
    assert LOCAL.scopes == {Scope.READ, Scope.WRITE, Scope.OPERATOR}
    assert LOCAL.actor == "local"
