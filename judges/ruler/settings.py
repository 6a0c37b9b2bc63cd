"""What a run's request may say to the judge `ruler`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

from environment.base import Json
from judges import registry
from judges.base import JudgeServices
from judges.ruler.judge import NAME, RulerJudge

MAX_RUBRIC_CHARACTERS = 8_000
MAX_PASSES = 4
_KNOWN = ("model", "rubric", "passes", "fallback", "temperature", "timeout_s")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]*(/[A-Za-z0-9._:@-]+)*")
"""As of the service's setting: never an address, which some of litellm's providers would open."""
_RUBRIC = files("judges").joinpath("prompts/ruler_rubric.txt").read_text(encoding="utf-8").strip()


@dataclass(frozen=True, slots=True)
class _Config:
    """`fallback` names the judge of groups that the model gives no verdict on; it is built with its defaults."""

    model: str | None = None
    rubric: str | None = None
    passes: int = 2
    fallback: str | None = None
    temperature: float | None = 0.0
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        named = self.model is None or (_is_text(self.model, 256) and _MODEL.fullmatch(self.model))
        _check(named, "model is a model's name")
        _check(
            self.rubric is None or _is_text(self.rubric, MAX_RUBRIC_CHARACTERS),
            f"rubric is a text of at most {MAX_RUBRIC_CHARACTERS} characters",
        )
        _check(type(self.passes) is int and 1 <= self.passes <= MAX_PASSES, f"passes is one of 1 to {MAX_PASSES}")
        _check(self.fallback is None or _is_text(self.fallback, 64), "fallback is the name of a judge")
        _check(self.fallback != NAME, "fallback is another judge")
        _check(self.temperature is None or _is_number(self.temperature, 0, 2), "temperature lies in [0, 2]")
        _check(_is_number(self.timeout_s, 1, 600), "timeout_s lies in [1, 600]")


def build(config: Mapping[str, Json], services: JudgeServices) -> RulerJudge:
    """The judge. Raises ValueError for a bad config or without a model, UnknownJudge for an unknown fallback."""
    unknown = sorted(set(config) - set(_KNOWN))
    if unknown:
        raise ValueError(f"ruler has no setting {', '.join(unknown)}; it takes: {', '.join(_KNOWN)}")
    settings = _Config(**config)
    model = replace(services.model, name=settings.model or services.model.name)
    if model.name is None:
        raise ValueError(
            "ruler needs a judge model: set LEARNLOOP_JUDGE_MODEL (and a key) or name it in the judge's config"
        )
    return RulerJudge(
        model,
        settings.rubric or services.rubric or _RUBRIC,
        passes=settings.passes,
        fallback=registry.build(settings.fallback, {}, services) if settings.fallback else None,
        cache=services.cache,
        temperature=settings.temperature,
        timeout_s=settings.timeout_s,
    )


def _check(good: object, expected: str) -> None:
    if not good:
        raise ValueError(f"ruler: {expected}")


def _is_text(value: Json, most: int) -> bool:
    return isinstance(value, str) and bool(value.strip()) and len(value) <= most


def _is_number(value: Json, least: float, most: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most
