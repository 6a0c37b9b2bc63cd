"""Whether a judge fits an environment, found from as few episodes as possible."""

from collections.abc import Sequence

import pytest

from learnloop_service.app.operations.fitting_judges import unattempted, unfit
from learnloop_service.environment.base import REPORTED_REWARD, Outcome, Scenario
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.environment.email_search.tools import EmailEpisode
from learnloop_service.judges.base import Candidate, Judgement, Score


class _Counted(SyntheticEmailSearch):
    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> EmailEpisode:
        self.made += 1
        return super().episode(scenario, max_turns)


class _Reporting(_Counted):
    def episode(self, scenario: Scenario, max_turns: int | None = None) -> EmailEpisode:
        episode = super().episode(scenario, max_turns)
        outcome = episode.outcome()
        episode.outcome = lambda: {**outcome, REPORTED_REWARD: 1.0}  # type: ignore[method-assign]
        return episode


class _FitsFrom:
    """Fits from the scenario with this number on."""

    name = "fits from"

    def __init__(self, number: int) -> None:
        self._left = number

    def lacks(self, scenario: Scenario, outcome: Outcome) -> str | None:
        self._left -= 1
        return f"it needs {self._left + 1} more" if self._left >= 0 else None

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        return Judgement([Score(1.0, "good")] * len(candidates))


@pytest.mark.parametrize(
    ("environment", "fits_from", "reason", "episodes"),
    [
        (_Counted, 0, None, 1),
        (_Counted, 3, None, 4),
        (_Counted, 100, "it needs 100 more", 20),
        (_Reporting, 100, None, 1),
    ],
)
def test_no_more_episodes_are_made_than_are_needed(
    environment: type[_Counted], fits_from: int, reason: str | None, episodes: int
) -> None:
    examined = environment()
    assert unfit(_FitsFrom(fits_from), unattempted(examined, seed=0)) == reason
    assert examined.made == episodes
