"""A judge that a benchmark installs as a plug-in of its services."""

import asyncio
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from benchmarks.frozen_code import ROOT
from environment.base import Json, Scenario
from judges.base import Candidate, Judge, Judgement, JudgeServices, Score
from judges.registry import GROUP
from tests.fakes.installed import installed

_BUILDERS = {"slow": f"{__name__}:build_slow"}
_BIAS = 0.2


@contextmanager
def judges_installed(site: Path) -> Iterator[Mapping[str, str]]:
    """Install the judge in the new folder `site`; yield the environment variables of a service that has it.

    The service imports this module from its working directory or from this repository.
    """
    with installed(site, GROUP, _BUILDERS):
        known = os.environ.get("PYTHONPATH")
        yield {"PYTHONPATH": os.pathsep.join([str(site), *([known] if known else []), str(ROOT)])}


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
            Score(_drawn(candidate.id) * (1 - _BIAS) + _BIAS * place / len(candidates), f"in place {place}")
            for place, candidate in enumerate(candidates)
        ]
        return Judgement(scores)


def _drawn(id: str) -> float:
    return int.from_bytes(sha256(id.encode()).digest()[:8]) / 2**64


def build_slow(config: Mapping[str, Json], services: JudgeServices) -> Judge:
    """Build the slow judge."""
    return SlowJudge(config["most_s"])
