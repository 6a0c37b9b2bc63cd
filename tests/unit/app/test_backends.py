"""Which backends the settings allow, and what is said of those they do not."""

from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app import backends
from learnloop_service.app.backends import Backends, Choice, access, choices, refusal, usable
from learnloop_service.app.settings import Settings, SettingsError, load_settings
from learnloop_service.training.backends.base import BackendUnavailable

GPUS = {"LEARNLOOP_LOCAL_TRAINER_GPUS": "0, 1", "LEARNLOOP_LOCAL_INFERENCE_GPUS": "2"}


def settings_of(tmp_path: Path, **given: Any) -> Settings:
    return load_settings(data_dir=tmp_path, **{"wandb_api_key": None, **given})


def test_without_a_key_and_a_gpu_there_is_the_embedded_one(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert usable(settings) == ["embedded"]
    embedded, serverless, local = choices(settings)
    assert embedded == Choice("embedded", None)
    assert (serverless.refusal or "").endswith("needs the setting WANDB_API_KEY.")
    assert "the extra `gpu`" in (local.refusal or "")


def test_with_a_key_there_is_the_hosted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(tmp_path, wandb_api_key="canary-key", serverless_url="http://127.0.0.1:9/v1/")
    assert usable(settings) == ["embedded", "serverless"]
    assert (access(settings).base_url, access(settings).settle_timeout_s) == ("http://127.0.0.1:9/v1", 300.0)
    assert "canary-key" not in repr(access(settings))
    monkeypatch.setattr(backends, "missing", lambda: None)
    assert usable(settings) == ["embedded", "serverless", "local"]


def test_the_tiny_base_is_the_engines_alone(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, wandb_api_key="key")
    assert refusal(settings, "embedded", "learnloop/tiny") is None
    assert refusal(settings, "serverless", "OpenPipe/Qwen3-14B-Instruct") is None
    assert "ART_BASE_MODEL" in (refusal(settings, "serverless", "learnloop/tiny") or "")
    assert refusal(settings, "cloud") == "Unknown backend 'cloud'. Available: embedded, serverless, local."


async def test_a_connection(tmp_path: Path) -> None:
    class NoEngine:
        """Nobody may ask for it."""

    settings = settings_of(tmp_path, wandb_api_key="key")
    connected = Backends(settings, NoEngine())  # type: ignore[arg-type]
    backend = await connected.connect("serverless")
    assert backend.name == "serverless"
    await backend.close()
    with pytest.raises(BackendUnavailable, match="backend local is not available here"):
        await connected.connect("local")
    await connected.stop()


def test_gpus_and_arguments_of_the_local_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in GPUS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEARNLOOP_LOCAL_ARGUMENTS", '{"peft_args": {"r": 16}}')
    settings = settings_of(tmp_path)
    assert (settings.local_trainer_gpus, settings.local_inference_gpus) == ((0, 1), (2,))
    assert settings.local_arguments == {"peft_args": {"r": 16}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"LEARNLOOP_LOCAL_TRAINER_GPUS": "0"}, "exactly one for sampling"),
        ({"LEARNLOOP_LOCAL_TRAINER_GPUS": "x"}, "LEARNLOOP_LOCAL_TRAINER_GPUS"),
        ({"LEARNLOOP_LOCAL_ARGUMENTS": '{"vllm": {}}'}, "LEARNLOOP_LOCAL_ARGUMENTS: .*ART has no vllm"),
    ],
)
def test_what_art_would_refuse_stops_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], said: str
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said):
        settings_of(tmp_path)
