"""The settings of the judge `ruler` in a run's request."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from learnloop_service.environment.base import Json
from learnloop_service.judges.base import JudgeServices
from learnloop_service.judges.model_settings import ModelSettings, check, check_names, is_text
from learnloop_service.judges.ruler.judge import NAME, RulerJudge

MAX_RUBRIC_CHARACTERS = 8_000
MAX_PASSES = 4
_KNOWN = ("model", "rubric", "passes", "fallback", "temperature", "timeout_s")
_RUBRIC = files("learnloop_service.judges").joinpath("prompts/ruler_rubric.txt").read_text(encoding="utf-8").strip()


@dataclass(frozen=True, kw_only=True)
class _Settings(ModelSettings):
    rubric: str | None = None
    passes: int = 2
    timeout_s: float = 120.0

    def check(self, judge: str) -> None:
        """Check the settings. Raises ValueError."""
        super().check(judge)
        rubric = self.rubric is None or is_text(self.rubric, MAX_RUBRIC_CHARACTERS)
        check(judge, rubric, f"rubric is a text of at most {MAX_RUBRIC_CHARACTERS} characters")
        check(judge, type(self.passes) is int and 1 <= self.passes <= MAX_PASSES, f"passes is one of 1 to {MAX_PASSES}")


def build(config: Mapping[str, Json], services: JudgeServices) -> RulerJudge:
    """Build the judge. Raises ValueError for a bad config or without a model, UnknownJudge for an unknown fallback."""
    check_names(NAME, config, _KNOWN)
    settings = _Settings(**config)
    settings.check(NAME)
    model, rubric = settings.model_for(NAME, services), settings.rubric or services.rubric or _RUBRIC
    return RulerJudge(model, rubric, passes=settings.passes, **settings.asking(services))
