"""Plays an environment without a model, and reports what is broken in it and what training on it can show.

An environment can teach if a perfect agent earns more than a random one, if rewards differ within a group, and if only
doing the task earns a reward. It is broken if the same calls have different outcomes, if the task reveals the answer,
or if held-out scenarios are in the training split.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import get_args

from learnloop_service.environment import registry
from learnloop_service.environment.access import Access
from learnloop_service.environment.base import Environment, EpisodeFailed, Json, Scenario, Solvable, Split
from learnloop_service.environment.plugins import PluginFault
from learnloop_service.judges.base import Judge, JudgeServices
from learnloop_service.judges.registry import build as build_judge
from learnloop_service.training.environment_check import agents, leaks, transcripts
from learnloop_service.training.environment_check.earnings import (
    GROUP_SIZE,
    earned,
    of_cheating,
    of_rewards,
    of_teaching,
)
from learnloop_service.training.environment_check.play import Agent, Paid, pay, play
from learnloop_service.training.environment_check.report import EnvironmentFinding, FindingState, Report

_SPLIT_SAMPLE = 256
"""Number of scenarios of each split that are compared with those of the others."""
_DETERMINISM_SCENARIOS = 4
"""Number of scenarios that are played again, to check that the same calls have the same outcome."""
_LEAK_SCENARIOS = 64
"""Number of scenarios that are searched for their references."""


async def check(
    name: str,
    config: Mapping[str, Json],
    data_dir: Path,
    *,
    scenarios: int,
    seed: int,
    access: Access | None = None,
) -> Report:
    """Check the environment of that name. `access` limits what it can reach.

    Faults of the environment or its judge are reported as findings. Raises UnknownEnvironment, and ValueError for a bad
    config.
    """
    try:
        environment = registry.build(name, config, data_dir, access)
    except PluginFault as fault:
        return _fault_report(name, "protocol", fault)
    try:
        return await _Check(environment, name, config, data_dir, scenarios, seed, access).report()
    except PluginFault as fault:
        return _fault_report(name, "protocol", fault)
    except EpisodeFailed as failure:
        return _fault_report(name, "episodes", failure)
    finally:
        environment.close()


def _fault_report(name: str, what: str, fault: Exception) -> Report:
    finding = EnvironmentFinding(what, FindingState.FAILED, str(fault))
    return Report(name, None, 0, (), None, None, None, None, (finding,))


class _JudgeFailed(Exception):
    """The judge raised an error, or cannot be built without settings (`needs`)."""

    def __init__(self, message: str, *, needs: bool = False) -> None:
        super().__init__(message)
        self.state = FindingState.WARNING if needs else FindingState.FAILED


@dataclass
class _Check:
    """One check of an environment."""

    environment: Environment
    name: str
    config: Mapping[str, Json]
    data_dir: Path
    count: int
    seed: int
    access: Access | None

    async def report(self) -> Report:
        drawn = {split: self._draw(split) for split in get_args(Split)}
        scenarios = drawn["train"][: self.count]
        findings = [EnvironmentFinding("protocol", FindingState.OK, "every call kept to it"), *self._splits(drawn)]
        findings += self._task_schema(scenarios)
        findings += self._leaks(scenarios[:_LEAK_SCENARIOS])
        findings += await self._check_determinism(scenarios[:_DETERMINISM_SCENARIOS])
        try:
            judge = self._judge()
            played = await self._play_agents(judge, scenarios)
        except _JudgeFailed as failure:
            text = f"the default judge {self.environment.default_judge!r} {failure}; no reward could be examined"
            findings.append(EnvironmentFinding("judge", failure.state, text))
            return Report(self.name, None, len(scenarios), (), None, None, None, None, findings)
        figures = earned(played)
        findings += [
            *of_rewards([paid for rollouts in played.values() for paid in rollouts]),
            *of_teaching(figures),
            *of_cheating(figures),
        ]
        oracle = figures.of("oracle")
        return Report(
            self.name,
            judge.name,
            len(scenarios),
            figures.agents,
            figures.headroom,
            oracle.success if oracle else None,
            figures.groups_without_signal,
            fmean(paid.played.seconds for paid in played["random"]),
            findings,
        )

    def _draw(self, split: Split) -> list[Scenario]:
        return self.environment.scenarios(split, max(self.count, _SPLIT_SAMPLE), self.seed)

    def _judge(self) -> Judge:
        try:
            return build_judge(self.environment.default_judge, {}, JudgeServices(rubric=self.environment.rubric))
        except Exception as error:
            raise _JudgeFailed(f"cannot be used without settings ({error})", needs=True) from error

    async def _play_agents(self, judge: Judge, scenarios: Sequence[Scenario]) -> dict[str, list[Paid]]:
        """Return the rollouts of each agent: first the agents that do not cheat, then the cheats."""
        played: dict[str, list[Paid]] = {}

        async def of(name: str, agent_for: Callable[[Scenario], Agent], group: int = 1) -> None:
            played[name] = [
                paid for scenario in scenarios for paid in await self._reward_group(judge, scenario, agent_for, group)
            ]

        if isinstance(self.environment, Solvable):
            solution = self.environment.solution
            await of("oracle", lambda scenario: agents.play_turns(solution(scenario)))
        rng = Random(f"environment check:{self.seed}")
        await of("random", lambda _: agents.random_agent(rng), GROUP_SIZE)
        await of("no-op", lambda _: agents.silent)
        await of("empty calls", lambda _: agents.empty_calls(rng))
        final = {name for rollouts in played.values() for paid in rollouts if (name := paid.played.ended_by)}
        tools = played["random"][0].played.tools

        def cheat(scenario: Scenario, name: str) -> Agent:
            return agents.cheats(rng, agents.CheatSheet(final, _others(scenario, scenarios)), tools)[name]

        for name in agents.cheats(rng, agents.CheatSheet(final, scenarios), tools):
            await of(name, partial(cheat, name=name))
        return played

    async def _reward_group(
        self, judge: Judge, scenario: Scenario, agent_for: Callable[[Scenario], Agent], group: int
    ) -> list[Paid]:
        plays = [await play(self.environment, scenario, agent_for(scenario)) for _ in range(group)]
        try:
            return await pay(self.environment, judge, plays)
        except PluginFault:
            raise
        except Exception as error:
            raise _JudgeFailed(f"raised {type(error).__name__}: {error}") from error

    def _splits(self, drawn: Mapping[Split, Sequence[Scenario]]) -> Iterator[EnvironmentFinding]:
        """Check that no task is in two splits, and that the same seed gives the same scenarios."""
        again = self.environment.scenarios("train", 1, self.seed, start=1)
        if len(drawn["train"]) > 1 and again[0] != drawn["train"][1]:
            yield EnvironmentFinding(
                "same scenarios", FindingState.FAILED, "scenario number 1 is another when it is asked for alone"
            )
        shared = leaks.shared_tasks(drawn)
        if shared:
            shares = "; ".join(f"{count} tasks of {one} are in {other}" for (one, other), count in shared.items())
            yield EnvironmentFinding("held-out scenarios", FindingState.FAILED, shares)
        else:
            sizes = ", ".join(
                f"{len(set(map(leaks.task_of, scenarios)))} of {split}" for split, scenarios in drawn.items()
            )
            yield EnvironmentFinding(
                "held-out scenarios", FindingState.OK, f"no task is in two splits ({sizes} were compared)"
            )

    def _task_schema(self, scenarios: Sequence[Scenario]) -> Iterator[EnvironmentFinding]:
        """Check the schema of tasks that the environment declares, if it does, against some of its scenarios."""
        if registry.traits(self.name).task is None:
            return
        if (schema := registry.task_schema(self.name)) is None:
            text = "TRAITS.task is not a JSON schema of an object with `properties`: the page Ask has no fields for it"
            yield EnvironmentFinding("tasks", FindingState.FAILED, text)
            return
        absent = sorted(
            {name for name in schema.get("required", ()) for scenario in scenarios if name not in scenario.task}
        )
        if absent:
            yield EnvironmentFinding(
                "tasks", FindingState.WARNING, f"TRAITS.task requires {', '.join(absent)}, which its scenarios lack"
            )
        else:
            yield EnvironmentFinding(
                "tasks", FindingState.OK, f"they have the fields {', '.join(schema['properties'])}"
            )

    def _leaks(self, scenarios: Sequence[Scenario]) -> Iterator[EnvironmentFinding]:
        """Check whether references can be read without doing the task."""
        by_where = leaks.leaks(self.environment, scenarios)
        for where, examples in by_where.items():
            text = f"{where}, in {len(examples)} of {len(scenarios)} scenarios, such as {examples[0]}"
            yield EnvironmentFinding("leaks", FindingState.FAILED, text)
        if not by_where:
            yield EnvironmentFinding(
                "leaks", FindingState.OK, "no reference can be read from its task, opening messages or tools"
            )

    async def _check_determinism(self, scenarios: Sequence[Scenario]) -> list[EnvironmentFinding]:
        """Check that the same calls have the same outcome when rollouts run concurrently, and in another process."""
        first = await transcripts.record(self.environment, scenarios, self.seed)
        fresh = registry.build(self.name, self.config, self.data_dir, self.access)
        try:
            repeated = {"beside other rollouts": await transcripts.record(fresh, scenarios, self.seed, together=True)}
        finally:
            fresh.close()
        task = transcripts.TranscriptTask(self.name, dict(self.config), str(self.data_dir), len(scenarios), self.seed)
        elsewhere = await asyncio.to_thread(transcripts.in_another_process, task)
        if elsewhere is not None:
            repeated["in another process"] = elsewhere
        for where, other in repeated.items():
            if (difference := transcripts.difference(first, other)) is not None:
                return [
                    EnvironmentFinding(
                        "determinism", FindingState.FAILED, f"the same calls gave something else {where}: {difference}"
                    )
                ]
        text = f"the same calls gave the same texts and outcomes {' and '.join(repeated)}"
        return [EnvironmentFinding("determinism", FindingState.OK, text)]


def _others(scenario: Scenario, scenarios: Sequence[Scenario]) -> Sequence[Scenario]:
    """Return the scenarios with another reference, or all scenarios if there are none."""
    return [other for other in scenarios if other.reference != scenario.reference] or scenarios
