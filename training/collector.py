"""The tries that an iteration makes, and the verdicts on them; what the journal has of them is not made again."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal

from ulid import ULID

from environment.base import Environment, Scenario
from judges.base import Judge, Judgement
from training.backends.base import BackendUnavailable, Endpoint
from training.budget import (
    Allowance,
    BudgetReached,
    Estimates,
    of_calls,
    of_kept,
    phase_of,
)
from training.journal import Journal, dump_judgements, dump_rollout, load_judgements, load_rollout
from training.rollouts import Chat, failed, open_chat, rollout
from training.scoring import judge_group, pay_group
from training.types import Group, Progress, Rollout, RunConfig

Report = Callable[[Progress], None]


class RolloutsFailed(Exception):
    """Every rollout of an iteration, or of one of its evaluations, failed: there is nothing to learn or to tell."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A rollout to make: which scenario, and what its randomness comes from."""

    scenario: Scenario
    seed: int


class RolloutCollector:
    """Makes and judges the tries of one iteration at a time; `begin` says which."""

    def __init__(
        self,
        config: RunConfig,
        environment: Environment,
        judge: Judge,
        journal: Journal,
        progress: Report,
        allowance: Allowance,
    ) -> None:
        self._config = config
        self._environment = environment
        self._judge = judge
        self._journal = journal
        self._progress = progress
        self._allowance = allowance
        self._estimates = Estimates(config, environment, allowance)
        self._iteration = 0
        self._kept: Mapping[str, str] = {}

    async def begin(self, iteration: int) -> Mapping[str, str]:
        """From now on it is this iteration; returns what the journal has of it."""
        self._iteration, self._kept = iteration, await self._journal.kept(iteration)
        self._allowance.begin(iteration, await asyncio.to_thread(of_kept, self._kept))
        return self._kept

    def attempts(self, scenarios: Sequence[Scenario], tries: int, *where: object) -> list[Attempt]:
        """`tries` attempts at each scenario. Their seeds tell apart a scenario that was drawn twice."""
        return [
            Attempt(scenario, self.seed(*where, place, number))
            for place, scenario in enumerate(scenarios)
            for number in range(tries)
        ]

    def seed(self, *parts: object) -> int:
        """A seed for that purpose of the run."""
        return Random(":".join(map(str, (self._config.seed, *parts)))).getrandbits(53)

    async def rollouts(
        self,
        phase: Literal["rollout", "reflect", "evaluate"],
        where: str,
        attempts: Sequence[Attempt],
        endpoint: Endpoint,
        temperature: float,
    ) -> list[Rollout]:
        """All attempts, `concurrency` at once, in their order. Nothing runs on after it returns or raises.

        Raises RolloutsFailed if every one of them failed; a showcase may. Raises BackendUnavailable where the endpoint
        went away for so long that a rollout gave up: that says nothing of the try, and it would be kept for ever.
        Raises BudgetReached where the next one does not fit the budget; those that were under way are kept.
        """
        config = self._config
        gate = asyncio.Semaphore(config.concurrency)
        done = 0

        async def attempt(chat: Chat, wanted: Attempt, entry: str) -> Rollout:
            nonlocal done
            if entry in self._kept:
                done += 1
                return load_rollout(wanted.scenario, self._kept[entry])
            worst = partial(self._estimates.rollout, wanted.scenario)
            async with gate, self._allowance.reserved(phase, worst) as reservation:
                finished = await rollout(
                    self._environment,
                    wanted.scenario,
                    chat,
                    id=str(ULID()),
                    seed=wanted.seed,
                    max_turns=config.max_turns,
                    temperature=temperature,
                    max_completion_tokens=config.max_completion_tokens,
                    timeout_s=config.rollout_timeout_s,
                    reservation=reservation,
                )
                self._estimates.saw_rollout(finished)
            if endpoint.remembers and _away(finished):
                raise BackendUnavailable(finished.error)
            done += 1
            self._journal.keep_soon(self._iteration, entry, dump_rollout(finished))
            self._progress(Progress(self._iteration, phase, done, len(attempts)))
            return finished

        self._progress(Progress(self._iteration, phase, 0, len(attempts)))
        started = []
        with _unwrapped():
            async with open_chat(endpoint, config.concurrency) as chat, asyncio.TaskGroup() as tasks:
                for number, wanted in enumerate(attempts):
                    started.append(tasks.create_task(attempt(chat, wanted, f"rollout/{where}/{number}")))
                    await asyncio.sleep(0)  # the first request is sent while the others are still being made
        rollouts = [task.result() for task in started]
        if failed(rollouts) == len(rollouts) and phase != "reflect":
            raise RolloutsFailed(
                f"all {len(rollouts)} rollouts of iteration {self._iteration} failed, the first: {rollouts[0].error}"
            )
        return rollouts

    async def scored(self, where: str, scenarios: Sequence[Scenario], rollouts: Sequence[Rollout]) -> tuple[Group, ...]:
        """Score the rollouts, which come in the order of their scenarios, equally many for each."""
        each = len(rollouts) // len(scenarios)
        tries = [rollouts[number * each : (number + 1) * each] for number in range(len(scenarios))]
        self._progress(Progress(self._iteration, "judge", 0, len(scenarios)))
        judgements = await self._judged(f"judge/{where}", scenarios, tries)
        return tuple(
            pay_group(self._environment, scenario, group, judgement)
            for scenario, group, judgement in zip(scenarios, tries, judgements, strict=True)
        )

    async def _judged(
        self, entry: str, scenarios: Sequence[Scenario], tries: Sequence[Sequence[Rollout]]
    ) -> list[Judgement]:
        """The verdicts on each scenario's tries, given once: a judge that is a model might give others next time."""
        if entry in self._kept:
            return load_judgements(self._kept[entry])
        judgements = await asyncio.gather(
            *(
                self._judge_group(f"{entry}/{number}", scenario, group)
                for number, (scenario, group) in enumerate(zip(scenarios, tries, strict=True))
            )
        )
        await self._journal.keep(self._iteration, entry, dump_judgements(judgements))
        return judgements

    async def _judge_group(self, entry: str, scenario: Scenario, group: Sequence[Rollout]) -> Judgement:
        """The verdicts on one scenario's tries; kept one by one where they cost something."""
        if entry in self._kept:
            [judgement] = load_judgements(self._kept[entry])
            return judgement
        phase = phase_of(*entry.split("/")[:2])
        async with self._allowance.reserved(phase, lambda: self._estimates.judging) as reservation:
            judgement = await judge_group(self._judge, scenario, group)
            self._estimates.saw_judgement(judgement)
            reservation.spend(of_calls(judgement.calls))
        if judgement.calls:
            self._journal.keep_soon(self._iteration, entry, dump_judgements([judgement]))
        return judgement


def _away(rollout: Rollout) -> bool:
    """A rollout's error begins with the exception's name; this one: nobody was at the other end."""
    return rollout.error is not None and rollout.error.startswith("APIConnectionError")


@contextmanager
def _unwrapped() -> Iterator[None]:
    """BackendUnavailable and BudgetReached as themselves, where a task group raises them for several rollouts."""
    try:
        yield
    except ExceptionGroup as group:
        for kind in (BackendUnavailable, BudgetReached):
            if found := group.subgroup(kind):
                raise found.exceptions[0] from group
        raise
