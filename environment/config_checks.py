"""Checks of single settings in the config of an environment: each takes a value and where it stands."""

from environment.base import Json

MAX_CHARACTERS = 20_000


def text(value: Json, where: str) -> str:
    """A string that is not empty. Raises ValueError."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where} must be a string that is not empty")
    if len(value) > MAX_CHARACTERS:
        raise ValueError(f"{where} has {len(value)} characters; at most {MAX_CHARACTERS} are allowed")
    return value


def strings(value: Json, where: str) -> tuple[str, ...]:
    """A list of strings that is not empty. Raises ValueError."""
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(each, str) and "\0" not in each for each in value)
    ):
        raise ValueError(f"{where} must be a list of strings that is not empty")
    return tuple(value)


def names_of_secrets(value: Json, where: str) -> dict[str, str]:
    """By header or variable. Raises ValueError."""
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError(
            f"{where} must give names of secrets, which the operator sets in LEARNLOOP_ENVIRONMENT_SECRETS"
        )
    return value


def number(value: Json, where: str, most: float, least: float = 1) -> float:
    """A number in that range. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{where} must be a number from {least:g} to {most:g}")
    return float(value)
