"""Settings shared by the judges that ask a language model, and checks of a judge's settings."""

import re
from collections.abc import Mapping

from environment.base import Json
from judges import registry
from judges.base import Judge, JudgeModel, JudgeServices, UnknownModel

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9._:@-]+)*")
"""The service's settings use the same pattern."""


def check_names(judge: str, config: Mapping[str, Json], known: tuple[str, ...]) -> None:
    """Raise ValueError if the config has a setting with an unknown name."""
    if unknown := sorted(set(config) - set(known)):
        raise ValueError(f"{judge} has no setting {', '.join(unknown)}; it takes: {', '.join(known)}")


def check(judge: str, good: object, expected: str) -> None:
    """Raise ValueError with the expected form unless `good`."""
    if not good:
        raise ValueError(f"{judge}: {expected}")


def check_model_settings(judge: str, *, model: Json, fallback: Json, temperature: Json, timeout_s: Json) -> None:
    """Raise ValueError if one of these settings is invalid."""
    named = model is None or (is_text(model, 256) and _MODEL.fullmatch(model))
    check(judge, named, "model is a model's name")
    check(judge, fallback is None or is_text(fallback, 64), "fallback is the name of a judge")
    check(judge, fallback != judge, "fallback is another judge")
    check(judge, temperature is None or is_number(temperature, 0, 2), "temperature lies in [0, 2]")
    check(judge, is_number(timeout_s, 1, 600), "timeout_s lies in [1, 600]")


def model_for(judge: str, name: str | None, services: JudgeServices) -> JudgeModel:
    """Return the model with that name, or the first available one for None. Raises UnknownModel."""
    try:
        return services.models.model(name)
    except UnknownModel as error:
        raise UnknownModel(f"{judge}: {error}") from None


def fallback_of(name: str | None, services: JudgeServices) -> Judge | None:
    """Return the judge with that name, built with its defaults. Raises UnknownJudge."""
    return registry.build(name, {}, services) if name else None


def is_text(value: Json, most: int) -> bool:
    """Whether the value is a text of at most `most` characters that is not blank."""
    return isinstance(value, str) and bool(value.strip()) and len(value) <= most


def is_number(value: Json, least: float, most: float) -> bool:
    """Whether the value is a number from `least` to `most`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
