"""Which models there are by the settings, each with its address and its key."""

import json
from pathlib import Path
from typing import Any

import pytest

from learnloop_service.app.listed_models import ListedModels
from learnloop_service.app.settings import Settings, SettingsError, load_settings
from learnloop_service.judges.base import JudgeModel, UnknownModel
from learnloop_service.judges.llm import JudgeUnavailable, complete
from learnloop_service.judges.prices import Price
from learnloop_service.judges.providers import PROVIDERS
from tests.fakes.recorded_connections import recorded_connections

EXAMPLE = [
    {"model": "openai/gpt-4.1-mini"},
    {
        "name": "own",
        "model": "openai/qwen",
        "base_url": "http://llm.internal:8000/v1/",
        "key_variable": "QWEN_KEY",
        "usd_per_million_prompt_tokens": 2,
        "usd_per_million_completion_tokens": 8,
    },
    {"name": "free", "model": "openai/qwen", "base_url": "http://10.1.2.3:8000"},
]


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # no .env
    for provider in PROVIDERS.values():
        monkeypatch.delenv(provider.key_variable, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("QWEN_KEY", "sk-qwen")


def _settings(monkeypatch: pytest.MonkeyPatch, **variables: str) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(f"LEARNLOOP_{name}", value)
    return load_settings()


def _reached(model: JudgeModel) -> tuple[str, str, str | None]:
    return model.name, model.base_url, model.api_key


def test_each_entry_brings_its_address_its_key_and_its_price(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ListedModels(_settings(monkeypatch, MODELS=json.dumps(EXAMPLE), REQUIRE_KEYS="always"))
    first, named, free = models.model(None), models.model("own"), models.model("free")
    assert _reached(first) == ("openai/gpt-4.1-mini", "https://api.openai.com/v1", "sk-openai")
    assert _reached(named) == ("openai/qwen", "http://llm.internal:8000/v1", "sk-qwen")
    assert _reached(free) == ("openai/qwen", "http://10.1.2.3:8000", None)
    assert first.price == Price(4e-7, 1.6e-6)
    assert named.price == Price(2e-6, 8e-6)
    assert free.price is None
    with pytest.raises(
        UnknownModel, match=r"^Unknown model 'openai/qwen'. Available: openai/gpt-4.1-mini, own, free\."
    ):
        models.model("openai/qwen")


def test_a_key_is_read_from_the_env_file_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("QWEN_KEY")
    (tmp_path / ".env").write_text("QWEN_KEY=sk-of-the-file\n")
    models = ListedModels(_settings(monkeypatch, MODELS=json.dumps(EXAMPLE)))
    assert models.model("own").api_key == "sk-of-the-file"


def test_the_judge_model_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = {"JUDGE_MODEL": "openai/judge", "JUDGE_BASE_URL": "http://127.0.0.1:9/v1", "JUDGE_API_KEY": "sk-judge"}
    models = ListedModels(_settings(monkeypatch, MODELS=json.dumps(EXAMPLE), **judge))
    assert models.names == ["openai/judge", "openai/gpt-4.1-mini", "own", "free"]
    assert _reached(models.model(None)) == ("openai/judge", "http://127.0.0.1:9/v1", "sk-judge")


def test_every_model_at_its_provider_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    models = ListedModels(_settings(monkeypatch, JUDGE_MODEL="openai/judge"))
    for name in (None, "openai/judge", "openai/other"):
        with pytest.raises(UnknownModel, match=r"^The model 'openai/\w+' needs a key: set OPENAI_API_KEY\. "):
            models.model(name)


def test_the_judge_model_can_be_one_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    models = ListedModels(_settings(monkeypatch, MODELS=json.dumps(EXAMPLE), JUDGE_MODEL="own"))
    assert models.names == ["own", "openai/gpt-4.1-mini", "free"]
    assert models.model(None).api_key == "sk-qwen"


def test_a_providers_key_does_not_go_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"JUDGE_MODEL": "openai/judge", "JUDGE_BASE_URL": "http://127.0.0.1:9/v1"}
    assert ListedModels(_settings(monkeypatch, **variables)).model(None).api_key is None


def test_without_required_keys_known_providers_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "sk-gemini")
    models = ListedModels(_settings(monkeypatch, JUDGE_MODEL="openai/judge", JUDGE_API_KEY="sk-judge"))
    assert _reached(models.model("openai/other")) == ("openai/other", "https://api.openai.com/v1", "sk-openai")
    gemini = "https://generativelanguage.googleapis.com/v1beta/openai"
    assert _reached(models.model("gemini/flash")) == ("gemini/flash", gemini, "sk-gemini")
    for name, message in {
        "mistral/x": "set MISTRAL_API_KEY",
        "ollama/x": "Available: openai/judge; PROVIDER/MODEL",
    }.items():
        with pytest.raises(UnknownModel, match=message):
            models.model(name)


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_every_provider_is_asked_at_its_own_public_address(
    monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    """Whatever other variables say that libraries of providers read."""
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE", f"{provider.upper()}_API_BASE", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/v1")
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ORGANIZATION", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "canary")
    monkeypatch.setenv(PROVIDERS[provider].key_variable, "sk-of-the-provider")
    model = ListedModels(_settings(monkeypatch)).model(f"{provider}/x")
    with recorded_connections(()) as outside, pytest.raises(JudgeUnavailable, match="HTTP 401"):
        await _ask(model)
    [connection] = outside
    assert PROVIDERS[provider].base_url.startswith(f"https://{connection.host}/")
    assert not connection.is_private
    head = connection.plaintext.partition(b"\r\n\r\n")[0].decode().lower()
    assert head.splitlines()[0].startswith("post /")
    assert "key" not in head.splitlines()[0]
    names = {line.partition(":")[0] for line in head.splitlines()[1:]}
    ours = {"host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "content-type"}
    assert names == ours | {"authorization"}
    assert "authorization: bearer sk-of-the-provider" in head


async def test_a_providers_name_that_leads_inside_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ListedModels(_settings(monkeypatch)).model("openai/x")
    monkeypatch.setattr("tests.fakes.recorded_connections.PUBLIC", "169.254.169.254")
    with recorded_connections(()) as outside, pytest.raises(JudgeUnavailable, match="an address that is not public"):
        await _ask(model)
    assert outside == []


async def _ask(model: JudgeModel) -> None:
    await complete(model, [{"role": "user", "content": "?"}], schema={}, temperature=0.0, timeout_s=10)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"MODELS": "openai/x"}, "LEARNLOOP_MODELS: expected a JSON list such as"),
        ({"MODELS": '["openai/x"]'}, "LEARNLOOP_MODELS: expected a JSON list such as"),
        (
            {"MODELS": '[{"model": "ollama/x"}]'},
            "expected PROVIDER/MODEL with one of anthropic, .* any OpenAI-compatible",
        ),
        ({"MODELS": '[{"model": "openai/x", "key": "sk-canary"}]'}, "as key_variable, instead of the key"),
        ({"MODELS": '[{"model": "openai/x", "key_variable": "NO_KEY"}]'}, "the variable NO_KEY is not set"),
        ({"MODELS": '[{"model": "groq/x"}]'}, "the variable GROQ_API_KEY is not set"),
        ({"MODELS": '[{"model": "openai/x"}, {"model": "openai/x"}]'}, "twice: openai/x"),
        ({"MODELS": '[{"model": "openai/x", "address": "y"}]'}, "LEARNLOOP_MODELS: "),
        ({"MODELS": '[{"model": "openai/x", "base_url": "http://u:p@h/v1"}]'}, "the address of a server such as"),
        ({"MODELS": '[{"model": "openai/x", "usd_per_million_prompt_tokens": 1}]'}, "or neither"),
        ({"JUDGE_MODEL": "bedrock/x"}, "LEARNLOOP_JUDGE_MODEL: 'bedrock/x' does not name a provider"),
        ({"JUDGE_API_KEY": "sk-canary"}, "LEARNLOOP_JUDGE_API_KEY: this is for the model that LEARNLOOP_JUDGE_MODEL"),
        ({"JUDGE_BASE_URL": "http://x/v1"}, "LEARNLOOP_JUDGE_BASE_URL: this is for the model"),
        ({"MODELS": '[{"model": "openai/x"}]', "JUDGE_MODEL": "openai/x", "JUDGE_API_KEY": "k"}, "is on the list"),
    ],
)
def test_a_wrong_list_is_refused_at_start(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        _settings(monkeypatch, **variables)
    assert "canary" not in str(refused.value)
