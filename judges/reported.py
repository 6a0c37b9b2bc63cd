"""The judge `reported`: uses only rewards that were reported. It has no model and no key."""

from collections.abc import Mapping, Sequence

from environment.base import Json, Scenario
from judges.base import Candidate, Judge, Judgement, JudgeServices, Score, take_no_settings

NAME = "reported"


def build(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """Build the judge, which has no settings. Raises ValueError if the config has any."""
    take_no_settings(NAME, config)
    return ReportedJudge()


class ReportedJudge:
    """Gives no score. Rollouts with a reported reward never reach a judge, so those that do have none."""

    name = NAME

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        return Judgement([Score(None, "no reward was reported")] * len(candidates))
