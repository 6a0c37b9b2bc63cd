"""Settings shared by the judges that ask a language model, and checks of a judge's settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learnloop_service.environment.base import Json
from learnloop_service.judges import registry
from learnloop_service.judges.base import JudgeModel, JudgeServices, UnknownModel

_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9._:@-]+)*")
"""A model's name as PROVIDER/MODEL. The service's settings have the same pattern."""


def check_names(judge: str, config: Mapping[str, Json], settings: tuple[str, ...]) -> None:
    """Check that the config has no other settings than these. Raises ValueError."""
    if unknown := sorted(set(config) - set(settings)):
        raise ValueError(f"{judge} has no setting {', '.join(unknown)}; it takes: {', '.join(settings)}")


def check(judge: str, good: object, expected: str) -> None:
    """Raise ValueError with the expectation unless the setting is good."""
    if not good:
        raise ValueError(f"{judge}: {expected}")


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The settings of a judge that asks a model. `fallback` names the judge of what the model gives no verdict on; it
    is built with its defaults."""

    model: str | None = None
    fallback: str | None = None
    temperature: float | None = 0.0
    timeout_s: float = 60.0

    def check(self, judge: str) -> None:
        """Check the settings. Raises ValueError."""
        named = self.model is None or (is_text(self.model, 256) and _MODEL.fullmatch(self.model))
        check(judge, named, "model is a model's name")
        check(judge, self.fallback is None or is_text(self.fallback, 64), "fallback is the name of a judge")
        check(judge, self.fallback != judge, "fallback is another judge")
        check(judge, self.temperature is None or is_number(self.temperature, 0, 2), "temperature lies in [0, 2]")
        check(judge, is_number(self.timeout_s, 1, 600), "timeout_s lies in [1, 600]")

    def model_for(self, judge: str, services: JudgeServices) -> JudgeModel:
        """Return the model that is named, or the service's first one if none is. Raises UnknownModel."""
        try:
            return services.models.model(self.model)
        except UnknownModel as error:
            raise UnknownModel(f"{judge} needs a language model: {error}") from None

    def asking(self, services: JudgeServices) -> dict[str, Any]:
        """Return the keyword arguments of the judge's constructor. Raises UnknownJudge for an unknown fallback."""
        fallback = registry.build(self.fallback, {}, services) if self.fallback else None
        request_settings = {"temperature": self.temperature, "timeout_s": self.timeout_s}
        return {"fallback": fallback, "cache": services.cache, **request_settings}


def is_text(value: Json, most: int) -> bool:
    """Return whether it is a text that is not blank and has at most that many characters."""
    return isinstance(value, str) and bool(value.strip()) and len(value) <= most


def is_number(value: Json, least: float, most: float) -> bool:
    """Return whether it is a number in that range."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
