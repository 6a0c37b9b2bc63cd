"""Settings from the environment, and one readable line when they are wrong."""

from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.settings import Settings, SettingsError, load_settings


@pytest.fixture(autouse=True)
def _no_settings_of_the_developer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, field in Settings.model_fields.items():
        monkeypatch.delenv(f"LEARNLOOP_{name.upper()}" if field.validation_alias is None else name.upper(), False)
    monkeypatch.chdir(tmp_path)


def test_defaults_need_nothing(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.data_dir == tmp_path / ".learnloop"
    assert settings.database_url is None
    assert settings.art_project == "learnloop"
    assert settings.art_base_model == "learnloop/tiny"
    assert settings.backend == "embedded"


def test_the_environment_wins_over_the_file_and_code_over_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("LEARNLOOP_PORT=1\nART_PROJECT=from-file\nSOMETHING_ELSE=1\n")
    monkeypatch.setenv("LEARNLOOP_PORT", "2")
    assert load_settings().port == 2
    assert load_settings().art_project == "from-file"
    assert load_settings(port=3).port == 3
    assert load_settings(art_project="mine").art_project == "mine"


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    monkeypatch.setenv("FRONTEND_URL", "")
    monkeypatch.setenv("LEARNLOOP_PORT", "")
    settings = load_settings()
    assert settings.database_url is None
    assert settings.frontend_url is None
    assert settings.port == 8000


def test_base_models_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNLOOP_ENGINE_BASE_MODELS", "mine=/models/a, acme/other=/models/b")
    assert load_settings().engine_base_models == {"mine": Path("/models/a"), "acme/other": Path("/models/b")}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("learn.example", "http://learn.example:8000"),
        ("::1", "http://[::1]:8000"),
        ("2001:db8::7", "http://[2001:db8::7]:8000"),
        ("fe80::1%eth0", "http://[fe80::1%25eth0]:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://127.0.0.1:8000"),
        ("0:0:0:0:0:0:0:0", "http://127.0.0.1:8000"),
    ],
)
def test_agents_get_a_url_of_every_address(host: str, url: str) -> None:
    settings = load_settings(host=host, _env_file=None)
    assert settings.agents_url == url
    public = load_settings(host=host, public_url="https://learn.example/learnloop/", _env_file=None)
    assert public.agents_url == "https://learn.example/learnloop"


def test_origins_of_browsers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().cors_origins == ()
    origins = ("https://app.example", "http://localhost:3000", "http://[::1]:8443", "http://10.0.0.7:443")
    monkeypatch.setenv("LEARNLOOP_CORS_ORIGINS", " , ".join(origins))
    assert load_settings().cors_origins == origins
    monkeypatch.setenv("LEARNLOOP_CORS_ORIGINS", "*")
    assert load_settings().cors_origins == ("*",)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LEARNLOOP_PORT", "http"),
        ("LEARNLOOP_PORT", "65536"),
        ("LEARNLOOP_LOG_LEVEL", "loud"),
        ("LEARNLOOP_MAX_CONCURRENT_RUNS", "-1"),
        ("LEARNLOOP_BACKEND", "foo"),
        ("LEARNLOOP_ENGINE_ARGS", "--device tpu"),
        ("LEARNLOOP_ENGINE_ARGS", "--workers 0"),
        ("LEARNLOOP_ENGINE_ARGS", "--trainers 1"),
        ("LEARNLOOP_ENGINE_ARGS", "--workers '2"),
        ("LEARNLOOP_ENGINE_ARGS", "--data-dir elsewhere"),
        ("LEARNLOOP_ENGINE_ARGS", "--help"),
        ("LEARNLOOP_ENGINE_BASE_MODELS", "justaname"),
        ("LEARNLOOP_ENGINE_CHECKPOINT_STORE", "bucket/models"),
        ("LEARNLOOP_ENGINE_CHECKPOINT_STORE", "s3://key:secret@bucket"),
        ("FRONTEND_URL", "ftp://files.example"),
        ("ART_PROJECT", "../up"),
        ("ART_MODEL_NAME", "a b"),
        ("LEARNLOOP_MAX_GRAPH_BYTES", "1"),
        ("LEARNLOOP_CORS_ORIGINS", "app.example"),
        ("LEARNLOOP_CORS_ORIGINS", "https://app.example/"),
        ("LEARNLOOP_CORS_ORIGINS", "https://app.example/page"),
        ("LEARNLOOP_CORS_ORIGINS", "https://App.example"),
        ("LEARNLOOP_CORS_ORIGINS", "https://app.example:443"),
        ("LEARNLOOP_CORS_ORIGINS", "https://*.example"),
        ("LEARNLOOP_CORS_ORIGINS", "https://user@app.example"),
        ("LEARNLOOP_CORS_ORIGINS", "ftp://app.example"),
        ("LEARNLOOP_CORS_ORIGINS", "*, https://app.example"),
        ("LEARNLOOP_CORS_ORIGINS", "null"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=rf"bad settings: {variable}: ") as caught:
        load_settings()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "right"),
    [
        ("LEARNLOOP_BACKEND", "foo", "expected one of embedded, local, serverless"),
        ("LEARNLOOP_CORS_ORIGINS", "https://app.example/", r"such as https://app\.example .* trailing slash"),
        ("LEARNLOOP_PROMPTED_SERVERS", "http://a", r"PROMPTED_SERVERS is gone: name the models .* in LEARNLOOP_MODELS"),
    ],
)
def test_what_would_be_right_is_said(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, right: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=right):
        load_settings()


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets: dict[str, Any] = {
        "OPENAI_API_KEY": "sk-canary",
        "WANDB_API_KEY": "wb-canary",
        "DATABASE_URL": "postgresql://u:pw-canary@host/db",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    assert "canary" not in repr(load_settings()) + str(load_settings().model_dump())


def test_a_misspelt_setting_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEARNLOOP_POTR", "9000")
    with pytest.raises(SettingsError, match=r"LEARNLOOP_POTR: Unknown setting\. Did you mean LEARNLOOP_PORT\?"):
        load_settings()
    monkeypatch.delenv("LEARNLOOP_POTR")
    (tmp_path / ".env").write_text("LEARNLOOP_REQUIRE_KEY=always\n")
    with pytest.raises(SettingsError, match="Did you mean LEARNLOOP_REQUIRE_KEYS"):
        load_settings(_env_file=tmp_path / ".env")


@pytest.mark.parametrize(
    ("variable", "value", "flag"),
    [
        ("LEARNLOOP_ENGINE_THREADS", "2", "--threads 2"),
        ("LEARNLOOP_ENGINE_TRAIN_THREADS", "2", "--train-threads 2"),
        ("LEARNLOOP_ENGINE_VLLM_ARGS", "--quantization fp8", "--vllm-args='--quantization fp8'"),
    ],
)
def test_what_is_a_flag_of_the_engine_is_refused_with_its_new_spelling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, value: str, flag: str
) -> None:
    monkeypatch.setenv(variable, "")
    load_settings()
    monkeypatch.delenv(variable)
    message = f'bad settings: {variable} is gone: use LEARNLOOP_ENGINE_ARGS="{flag}"'
    (tmp_path / ".env").write_text(f"{variable}={value}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert str(caught.value) == message
    (tmp_path / ".env").write_text("")
    monkeypatch.setenv("LEARNLOOP_ENGINE_ARGS", flag)
    load_settings()


def test_a_variable_of_something_else_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEARNLOOP_PUBLISHED_PORT", "LEARNLOOP_API_KEY", "LEARNLOOP_URL", "LEARNLOOP_MY_PLUGIN"):
        monkeypatch.setenv(name, "1")
    load_settings()
