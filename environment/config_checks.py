"""Checks of single settings in an environment's config; each takes a value and its place in the config."""

from collections.abc import Callable, Mapping
from typing import Any

from learnloop_service.environment.base import Json
from learnloop_service.environment.given_scenarios import check_keys

MAX_CHARACTERS = 20_000
_MAX_RESULT_CHARACTERS = 200_000


def settings(
    config: Mapping[str, Json], environment: str, checks: Mapping[str, Callable[[Json, str], object]]
) -> dict[str, Any]:
    """Return the given settings, each as its check returns it. Raises ValueError, also for a setting without a
    check."""
    check_keys(dict(config), f"the config of {environment}", sorted(checks))
    return {name: check(config[name], name) for name, check in checks.items() if name in config}


def text(value: Json, where: str) -> str:
    """Return the value if it is a non-empty string. Raises ValueError."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must be a string that is not empty")
    if len(value) > MAX_CHARACTERS:
        raise ValueError(f"{where} has {len(value)} characters; at most {MAX_CHARACTERS} are allowed")
    return value


def strings(value: Json, where: str) -> tuple[str, ...]:
    """Return the value if it is a non-empty list of strings. Raises ValueError."""
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(string, str) and "\0" not in string for string in value)
    ):
        raise ValueError(f"{where} must be a list of strings that is not empty")
    return tuple(value)


def names_of_secrets(value: Json, where: str) -> dict[str, str]:
    """Return names of secrets by header or environment variable. Raises ValueError."""
    if not isinstance(value, dict) or not all(isinstance(secret, str) for secret in value.values()):
        raise ValueError(
            f"{where} must give names of secrets, which the operator sets in LEARNLOOP_ENVIRONMENT_SECRETS"
        )
    return value


def number(value: Json, where: str, most: float, least: float = 1) -> float:
    """Return the value if it is a number in that range. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{where} must be a number from {least:g} to {most:g}")
    return float(value)


def result_characters(value: Json, where: str) -> int:
    """Return the value if it can limit the length of a tool's result. Raises ValueError."""
    return int(number(value, where, _MAX_RESULT_CHARACTERS))
