"""The judge `reported`: takes rewards that were reported, and has no opinion of its own. No model, no key."""

from collections.abc import Mapping, Sequence

from learnloop_service.environment.base import Json, Outcome, Scenario
from learnloop_service.judges.base import Candidate, Judge, Judgement, JudgeServices, Score, take_no_settings
from learnloop_service.judges.traits import JudgeTraits

NAME = "reported"
TRAITS = JudgeTraits(repeatable=True)
_NO_REWARD = "no reward was reported"


def build(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """Build the judge, which has no settings. Raises ValueError if the config has any."""
    take_no_settings(NAME, config)
    return ReportedJudge()


class ReportedJudge:
    """Scores nothing: `checked` takes a reported reward as the score, so only rollouts without one get here."""

    name = NAME

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        return _NO_REWARD

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        return Judgement([Score(None, _NO_REWARD)] * len(candidates))
