"""Which backends can be used here, and what is said of those that cannot."""

from pathlib import Path

import pytest

from learnloop_service.app.backends import BackendChoice, Backends, choices, refusal, usable
from learnloop_service.app.settings import SettingsError, load_settings
from learnloop_service.training.backends import registry
from learnloop_service.training.backends.base import BackendUnavailable
from learnloop_service.training.backends.local import backend as local
from learnloop_service.training.backends.local.backend import LocalSettings
from learnloop_service.training.backends.serverless import ServerlessSettings
from learnloop_service.training.backends.traits import State

GPUS = {"LEARNLOOP_LOCAL_TRAINER_GPUS": "0, 1", "LEARNLOOP_LOCAL_INFERENCE_GPUS": "2"}


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key of W&B is set, unless a test sets one."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


def test_without_a_key_and_a_gpu_there_is_the_embedded_one() -> None:
    assert usable() == ["embedded"]
    embedded, on_gpus, serverless = choices()
    assert embedded == BackendChoice("embedded", None)
    assert (serverless.refusal or "").endswith("needs the setting WANDB_API_KEY.")
    assert "the extra `gpu`" in (on_gpus.refusal or "")


def test_with_a_key_there_is_the_hosted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "canary-key")
    monkeypatch.setenv("LEARNLOOP_SERVERLESS_URL", "http://127.0.0.1:9/v1/")
    assert usable() == ["embedded", "serverless"]
    access = ServerlessSettings().access()
    assert access.base_url == "http://127.0.0.1:9/v1"
    assert access.settle_timeout_s == 300.0
    assert "canary-key" not in repr(access)
    monkeypatch.setattr(local, "missing", lambda: None)
    assert usable() == ["embedded", "local", "serverless"]


def test_the_tiny_base_is_the_engines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "key")
    assert refusal("embedded", "learnloop/tiny") is None
    assert refusal("serverless", "OpenPipe/Qwen3-14B-Instruct") is None
    assert "ART_BASE_MODEL" in (refusal("serverless", "learnloop/tiny") or "")
    assert refusal("cloud") == "Unknown backend 'cloud'. Available: embedded, local, serverless."


def test_the_engine_has_one_backend() -> None:
    assert registry.engine_backend() == "embedded"
    assert [name for name in (*registry.names(), "removed") if registry.is_on_engine(name)] == ["embedded"]


def test_settings_are_listed_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "canary-key")
    listed = registry.listed_settings("serverless")
    assert "canary" not in str(listed)
    assert [setting.variable for setting in listed if setting.is_set] == ["WANDB_API_KEY"]
    assert all(setting.description for setting in listed)


def test_preflight_asks_whether_the_hosted_one_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setenv("LEARNLOOP_SERVERLESS_URL", "http://127.0.0.1:9/v1")
    [check] = registry.preflight("serverless")
    assert check.state is State.FAILED
    assert "http://127.0.0.1:9/v1 cannot be reached" in check.found


async def test_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoEngine:
        """An engine that must not be requested."""

    monkeypatch.setenv("WANDB_API_KEY", "key")
    connected = Backends(load_settings(data_dir=tmp_path), NoEngine())  # type: ignore[arg-type]
    backend = await connected.connect("serverless")
    assert backend.name == "serverless"
    await backend.close()
    with pytest.raises(BackendUnavailable, match="backend local is not available here"):
        await connected.connect("local")
    await connected.stop()


def test_gpus_and_arguments_of_the_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GPUS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEARNLOOP_LOCAL_ARGUMENTS", '{"peft_args": {"r": 16}}')
    settings = LocalSettings()
    assert settings.local_trainer_gpus == (0, 1)
    assert settings.local_inference_gpus == (2,)
    assert settings.local_arguments == {"peft_args": {"r": 16}}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"LEARNLOOP_LOCAL_TRAINER_GPUS": "0"}, "exactly one for sampling"),
        ({"LEARNLOOP_LOCAL_TRAINER_GPUS": "x"}, "LEARNLOOP_LOCAL_TRAINER_GPUS"),
        ({"LEARNLOOP_LOCAL_ARGUMENTS": '{"vllm": {}}'}, "LEARNLOOP_LOCAL_ARGUMENTS: .*ART has no vllm"),
        ({"LEARNLOOP_SERVERLESS_QUIET_S": "soon"}, "LEARNLOOP_SERVERLESS_QUIET_S: Input should be a valid number"),
        ({"LEARNLOOP_SERVERLES_URL": "http://a"}, "Did you mean LEARNLOOP_SERVERLESS_URL?"),
    ],
)
def test_what_a_backend_would_refuse_stops_the_service(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=message):
        load_settings(data_dir=tmp_path)
