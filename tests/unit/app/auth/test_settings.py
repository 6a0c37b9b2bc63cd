"""When keys are needed, and what cannot be set."""

from typing import Any

import pytest

from learnloop_service.app.settings import Settings, SettingsError, load_settings


def _settings(**more: Any) -> Settings:
    return load_settings(_env_file=None, **more)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_on_loopback_keys_are_needed_if_always_or_if_one_exists(host: str) -> None:
    assert _settings(host=host).guarded is None
    assert not _settings(host=host).keys_required
    assert _settings(host=host, operator_key="k" * 32).keys_required
    assert _settings(host=host, require_keys="never", operator_key="k" * 32).guarded is False
    assert not _settings(host=host, require_keys="never").keys_required
    assert _settings(host=host, require_keys="always").keys_required


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "api.example", "localhost.example", "", "127.1"])
def test_elsewhere_they_are_needed_and_cannot_be_left_out(host: str) -> None:
    assert _settings(host=host).keys_required
    with pytest.raises(SettingsError, match=r"LEARNLOOP_REQUIRE_KEYS: .*LEARNLOOP_HOST=127\.0\.0\.1"):
        _settings(host=host, require_keys="never")


def test_an_operators_key_is_long_and_not_shown() -> None:
    with pytest.raises(SettingsError, match=r"LEARNLOOP_OPERATOR_KEY: .*32") as error:
        _settings(operator_key="too-short-a-secret")
    assert "too-short-a-secret" not in str(error.value)
    assert "k" * 32 not in repr(_settings(operator_key="k" * 32))
