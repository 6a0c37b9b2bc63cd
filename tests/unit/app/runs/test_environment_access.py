"""What the operator's settings let environments reach."""

from typing import Any

import pytest
from pydantic import SecretStr

from learnloop_service.app.runs.environment_access import EnvironmentAccess
from learnloop_service.app.settings import SettingsError, load_settings


def access(**settings: Any) -> EnvironmentAccess:
    return EnvironmentAccess(load_settings(**settings))


@pytest.mark.parametrize(
    "command", [["uvx", "time"], ["npx", "files", "/srv/a b"], ["npx", "files", "a", "b"], ["npx", "files"]]
)
def test_commands_that_the_operator_names_may_be_run(command: list[str]) -> None:
    access(environment_commands="uvx time, npx files *").check_command(command)


@pytest.mark.parametrize(
    "command",
    [["uvx"], ["uvx", "time", "--more"], ["uvx time"], ["npx"], ["npx", "other"], ["sh", "-c", "uvx time"], []],
)
def test_no_other_command_may_be_run(command: list[str]) -> None:
    with pytest.raises(ValueError, match="LEARNLOOP_ENVIRONMENT_COMMANDS"):
        access(environment_commands="uvx time, npx files *").check_command(command)


async def test_a_command_is_checked_again_as_it_is_started(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="LEARNLOOP_ENVIRONMENT_COMMANDS"):
        await access().start(["true"], {}, tmp_path)


@pytest.mark.parametrize("commands", ["*", "a, *", "'open"])
def test_every_command_at_once_cannot_be_allowed(commands: str) -> None:
    with pytest.raises(SettingsError):
        access(environment_commands=commands)


def test_a_secret_is_for_its_server_alone() -> None:
    secrets = {"https://crm.example/mcp": {"token": SecretStr("s3cret")}}
    environment_access = access(environment_secrets=secrets)
    assert environment_access.secret("https://crm.example/mcp", "token") == "s3cret"
    for server, name in (("https://crm.example/other", "token"), ("https://crm.example/mcp", "key")):
        with pytest.raises(ValueError, match="LEARNLOOP_ENVIRONMENT_SECRETS"):
            environment_access.secret(server, name)


def test_modules_and_urls() -> None:
    environment_access = access(environment_modules="gsm8k,wordle")
    environment_access.check_module("wordle")
    with pytest.raises(ValueError, match="LEARNLOOP_ENVIRONMENT_MODULES"):
        environment_access.check_module("os")
    environment_access.check_url("https://crm.example/mcp")
    with pytest.raises(ValueError, match="user or password"):
        environment_access.check_url("https://me:secret@crm.example/mcp")
