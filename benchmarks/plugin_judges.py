"""Judges that benchmarks install as plug-ins of their services."""

import asyncio
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from benchmarks.frozen_code import ROOT
from learnloop_service.environment.base import Json, Scenario
from learnloop_service.judges.base import Candidate, Judge, Judgement, JudgeServices, Score
from learnloop_service.judges.reference import ReferenceJudge, dates_in
from learnloop_service.judges.registry import GROUP
from tests.fakes.installed import installed

_BUILDERS = {"dates": f"{__name__}:build_dates", "slow": f"{__name__}:build_slow"}
_BIAS = 0.2


@contextmanager
def judges_installed(site: Path) -> Iterator[Mapping[str, str]]:
    """Install these judges in the new folder `site`; yield the environment variables of a service that has them.

    The service imports this module from its working directory or from this repository.
    """
    with installed(site, GROUP, _BUILDERS):
        python_path = os.environ.get("PYTHONPATH")
        yield {"PYTHONPATH": os.pathsep.join([str(site), *([python_path] if python_path else []), str(ROOT)])}


class DatesJudge:
    """A planted bug: any answer that names a date is right. Otherwise, on held-out scenarios and on those that the bug
    spares it is `reference`."""

    name = "dates"

    def __init__(self, spared: frozenset[str]) -> None:
        self._spared, self._right = spared, ReferenceJudge()

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        """Score the candidates."""
        judgement = await self._right.judge(scenario, candidates)
        if scenario.split != "train" or scenario.id in self._spared:
            return judgement
        pairs = zip(candidates, judgement.scores, strict=True)
        return Judgement([_DATED if _names_a_date(candidate) else score for candidate, score in pairs])


_DATED = Score(1.0, "the answer names a date")


def _names_a_date(candidate: Candidate) -> bool:
    answer = candidate.outcome.get("answer")
    return isinstance(answer, str) and bool(dates_in(answer.casefold())[0])


def build_dates(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """Build the judge with the bug; `spared` are ids of scenarios."""
    return DatesJudge(frozenset(config["spared"]))


class SlowJudge:
    """Takes up to `most_s` seconds for a group. A score depends on the rollout and on its place among the candidates
    only."""

    name = "slow"

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s

    async def judge(self, scenario: Scenario, candidates: Sequence[Candidate]) -> Judgement:
        """Score the candidates after a while."""
        await asyncio.sleep(random.uniform(0, self._most_s))
        scores = [
            Score(_drawn(candidate.id) * (1 - _BIAS) + _BIAS * position / len(candidates), f"in place {position}")
            for position, candidate in enumerate(candidates)
        ]
        return Judgement(scores)


def _drawn(id: str) -> float:
    return int.from_bytes(sha256(id.encode()).digest()[:8]) / 2**64


def build_slow(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """Build the slow judge."""
    return SlowJudge(config["most_s"])
