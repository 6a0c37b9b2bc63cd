"""Train steps, and runs without rollouts, that are killed while they are taken."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from learnloop_service.environment.base import Scenario
from learnloop_service.environment.email_search.environment import SyntheticEmailSearch
from learnloop_service.judges.base import Score
from learnloop_service.judges.reference import ReferenceJudge
from learnloop_service.training.backends.base import Policy, TrainOutcome
from learnloop_service.training.backends.embedded import EmbeddedPolicy
from learnloop_service.training.journal import SERVED_RATIOS, IterationJournal
from learnloop_service.training.loop.learn_loop import learn_loop
from learnloop_service.training.loop.run_record import RunRecord
from learnloop_service.training.loop.train_step import TrainStep, request_for
from learnloop_service.training.types import Group, IterationResult, Resume, Rollout, RunConfig, ScoredRollout, Snapshot
from tests.best_of import best_of
from tests.policies import sampled_group

SCENARIO = Scenario("train.0", "train", {})


class Killed(BaseException):
    """The process is no more."""


async def outlived(
    config: RunConfig, policy: Policy, journal: "Entries", saved: list[IterationResult], record: Callable[[], RunRecord]
) -> list[IterationResult]:
    """Add the results of a run that continues after each of its deaths, with a new record each time."""
    for _ in range(6):
        resume = Resume(saved[-1].iteration + 1, Snapshot(saved[-1].step), best_of(saved)) if saved else None
        loop = learn_loop(
            config,
            SyntheticEmailSearch(),
            ReferenceJudge(),
            policy,
            journal=journal,
            resume=resume,
            demonstrations=record(),
        )
        try:
            async with aclosing(loop):
                async for result in loop:
                    saved.append(result)
            return saved
        except Killed:
            continue
    raise AssertionError("it never came to its end")


class Entries:
    """A journal that kills its writer once: before or after that entry is kept."""

    def __init__(self, before: str = "", after: str = "") -> None:
        self.saved: dict[int, dict[str, str]] = defaultdict(dict)
        self.deaths = 0
        self.arm(before, after)

    def arm(self, before: str = "", after: str = "") -> None:
        """Kill once more."""
        self._before = before
        self._after = after

    async def kept(self, iteration: int) -> Mapping[str, str]:
        return dict(self.saved[iteration])

    async def keep(self, iteration: int, name: str, value: str) -> None:
        if name == self._before:
            self._before = ""
            self._die()
        self.saved[iteration][name] = value
        if name == self._after:
            self._after = ""
            self._die()

    def _die(self) -> None:
        self.deaths += 1
        raise Killed

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        assert name == SERVED_RATIOS, "training is kept at once"
        self.saved[iteration][name] = value


def group_of(trajectories: list[Any]) -> Group:
    rollouts = tuple(
        ScoredRollout(Rollout(str(n), SCENARIO, trajectory, {}), Score(0.5, ""), trajectory.reward, {}, success=False)
        for n, trajectory in enumerate(trajectories)
    )
    return Group(SCENARIO, rollouts)


async def take(policy: Policy, journal: Entries, groups: list[Group], step: int = 0) -> TrainOutcome:
    """The train step of iteration 1, as a process that has just been started takes it."""
    entries = await IterationJournal.open(journal, 1)
    return await TrainStep(policy, entries, step).take(request_for(RunConfig(learning_rate=1e-3), groups, 1, step))


async def sampled(policy: EmbeddedPolicy, *, tokens: int = 8) -> list[Group]:
    """Four replies, paid for odd token ids."""
    return [group_of((await sampled_group(policy, step=0, tokens=tokens)).trajectories)]
