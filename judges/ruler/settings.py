"""What a run's request may say to the judge `ruler`."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from environment.base import Json
from judges.base import JudgeServices
from judges.model_settings import check, check_model_settings, check_names, fallback_of, is_text, model_for
from judges.ruler.judge import NAME, RulerJudge

MAX_RUBRIC_CHARACTERS = 8_000
MAX_PASSES = 4
_KNOWN = ("model", "rubric", "passes", "fallback", "temperature", "timeout_s")
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
        check_model_settings(
            NAME,
            model=self.model,
            fallback=self.fallback,
            temperature=self.temperature,
            timeout_s=self.timeout_s,
        )
        rubric = self.rubric is None or is_text(self.rubric, MAX_RUBRIC_CHARACTERS)
        check(NAME, rubric, f"rubric is a text of at most {MAX_RUBRIC_CHARACTERS} characters")
        check(NAME, type(self.passes) is int and 1 <= self.passes <= MAX_PASSES, f"passes is one of 1 to {MAX_PASSES}")


def build(config: Mapping[str, Json], services: JudgeServices) -> RulerJudge:
    """The judge. Raises ValueError for a bad config or without a model, UnknownJudge for an unknown fallback."""
    check_names(NAME, config, _KNOWN)
    settings = _Config(**config)
    return RulerJudge(
        model_for(NAME, settings.model, services),
        settings.rubric or services.rubric or _RUBRIC,
        passes=settings.passes,
        fallback=fallback_of(settings.fallback, services),
        cache=services.cache,
        temperature=settings.temperature,
        timeout_s=settings.timeout_s,
    )
