"""Where a project may push to."""

from importlib.util import find_spec
from typing import Any

import pytest

from learnloop_service.app.errors import Conflict, Forbidden
from learnloop_service.app.model_registry.pushes import destination
from learnloop_service.app.model_registry.pushes.hugging_face import hub_target
from learnloop_service.app.model_registry.pushes.s3 import s3_target
from learnloop_service.app.settings import Settings, SettingsError, load_settings


def _settings(**more: Any) -> Settings:
    fixed = {"hf_token": "token", "s3_bucket": "models", "s3_key_id": "id", "s3_secret": "secret"}
    return load_settings(_env_file=None, **fixed | more)


@pytest.mark.parametrize(
    ("repos", "repo", "allowed"),
    [
        ("mail=acme/mail", "acme/mail", True),
        ("mail=acme/mail", "acme/mail2", False),
        ("mail=acme/mail", "acme/Mail", False),
        ("mail=acme/m*", "acme/mail", True),
        ("sales=acme/mail", "acme/mail", False),
        ("sales=acme/s, mail=acme/mail", "acme/mail", True),
        ("*=acme/*", "acme/mail", True),
        ("*=acme/*", "other/mail", False),
        ("mail=*/mail", "acme/mail", True),
    ],
)
def test_repositories_of_a_project(repos: str, repo: str, allowed: bool) -> None:
    settings = _settings(hf_repos=repos)
    if allowed:
        assert hub_target(settings, "mail", repo).repo == repo
    else:
        with pytest.raises(Forbidden, match="can only push to"):
            hub_target(settings, "mail", repo)


@pytest.mark.parametrize("repos", ["acme/mail", "mail=acme", "mail=acme/a/b", "mail=", "a/b=acme/mail", "mail=/x"])
def test_repositories_that_nobody_can_mean(repos: str) -> None:
    with pytest.raises(SettingsError, match="expected PROJECT=NAMESPACE/NAME"):
        _settings(hf_repos=repos)


@pytest.mark.parametrize(("prefix", "key"), [("", "mail/live/1"), ("a/b", "a/b/mail/live/1")])
def test_a_project_has_its_place_in_the_bucket(prefix: str, key: str) -> None:
    assert s3_target(_settings(s3_prefix=prefix), "mail", "live/1").prefix == key


@pytest.mark.parametrize("prefix", ["/a", "a/", "../a", "a//b", "a/../b"])
def test_prefixes_lead_nowhere_else(prefix: str) -> None:
    with pytest.raises(SettingsError, match="LEARNLOOP_S3_PREFIX"):
        _settings(s3_prefix=prefix)


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ("obstore", "huggingface_hub")
    monkeypatch.setattr(destination, "find_spec", lambda name: None if name in absent else find_spec(name))
    with pytest.raises(Conflict, match="needs the extra `export`"):
        s3_target(_settings(), "mail", "x")
    with pytest.raises(Conflict, match="needs the extra `export`"):
        hub_target(_settings(hf_repos="*=acme/*"), "mail", "acme/x")


def test_secrets_are_not_shown() -> None:
    text = repr((s3_target(_settings(), "mail", "x"), hub_target(_settings(hf_repos="*=a/*"), "mail", "a/x")))
    assert "secret" not in text
    assert "token" not in text
