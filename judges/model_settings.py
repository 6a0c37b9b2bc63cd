"""Settings that the judges have in common which ask a language model, and the checks of a judge's settings."""

import re
from collections.abc import Mapping

from environment.base import Json
from judges import registry
from judges.base import Judge, JudgeModel, JudgeServices, UnknownModel

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9._:@-]+)*")
"""The service's settings have the same pattern."""


def check_names(judge: str, config: Mapping[str, Json], known: tuple[str, ...]) -> None:
    """Raises ValueError if the config has a setting of another name."""
    if unknown := sorted(set(config) - set(known)):
        raise ValueError(f"{judge} has no setting {', '.join(unknown)}; it takes: {', '.join(known)}")


def check(judge: str, good: object, expected: str) -> None:
    """Raises ValueError unless it is good."""
    if not good:
        raise ValueError(f"{judge}: {expected}")


def check_model_settings(judge: str, *, model: Json, fallback: Json, temperature: Json, timeout_s: Json) -> None:
    """Raises ValueError."""
    named = model is None or (is_text(model, 256) and _MODEL.fullmatch(model))
    check(judge, named, "model is a model's name")
    check(judge, fallback is None or is_text(fallback, 64), "fallback is the name of a judge")
    check(judge, fallback != judge, "fallback is another judge")
    check(judge, temperature is None or is_number(temperature, 0, 2), "temperature lies in [0, 2]")
    check(judge, is_number(timeout_s, 1, 600), "timeout_s lies in [1, 600]")


def model_for(judge: str, name: str | None, services: JudgeServices) -> JudgeModel:
    """The model of that name; None: the first one that there is. Raises UnknownModel."""
    try:
        return services.models.model(name)
    except UnknownModel as error:
        raise UnknownModel(f"{judge}: {error}") from None


def fallback_of(name: str | None, services: JudgeServices) -> Judge | None:
    """The judge of that name with its defaults. Raises UnknownJudge."""
    return registry.build(name, {}, services) if name else None


def is_text(value: Json, most: int) -> bool:
    """A text of at most that many characters that is not blank."""
    return isinstance(value, str) and bool(value.strip()) and len(value) <= most


def is_number(value: Json, least: float, most: float) -> bool:
    """A number in that range."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
