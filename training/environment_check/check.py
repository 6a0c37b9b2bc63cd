"""Plays an environment without a model, and says what is broken in it and what training on it could show.

An environment teaches where a perfect agent earns more than one that acts at random, where the rollouts of a group
differ in reward, and where nothing but doing the job pays. It is broken where the same calls give another outcome,
where the task gives the answer away, or where held-out scenarios were trained on.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import get_args

from environment import registry
from environment.access import Access
from environment.base import Environment, EpisodeFailed, Json, Scenario, Solvable, Split
from environment.plugins import PluginFault
from judges.base import Judge, JudgeServices
from judges.registry import build as build_judge
from training.environment_check import agents, leaks, transcripts
from training.environment_check.play import Agent, Paid, pay, play

GROUP_SIZE = 8
_SPLIT_SAMPLE = 256
"""How many scenarios of each split are compared with those of the others."""
_REPEATED = 4
"""How many scenarios are played again, to see that the same calls have the same outcome."""
_READ = 64
"""How many scenarios are searched for their references."""
_PAYING = 0.5
"""A cheat pays if it earns this share of what lies between the random agent and the oracle."""
_QUIET = 0.5
"""The share of groups without signal above which a warning is given."""


class State(StrEnum):
    """How a finding is to be taken. Only `failed` means that something is broken."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was examined, and what came of it."""

    name: str
    state: State
    said: str


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """What one agent earned. Both are None where the judge scored nothing; `success` is a share."""

    agent: str
    rollouts: int
    mean_reward: float | None
    success: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """What was found. Figures are None where they could not be had."""

    environment: str
    judge: str | None
    scenarios: int
    agents: Sequence[AgentFigures]
    headroom: float | None
    """Mean reward of the oracle, less that of the random agent."""
    solvable: float | None
    """The share of the scenarios that the oracle solves."""
    groups_without_signal: float | None
    """The share of the scenarios whose 8 random rollouts all earn the same."""
    seconds_per_rollout: float | None
    """Of the random agent, without judging."""
    findings: Sequence[Finding]

    @property
    def broken(self) -> bool:
        """Whether any finding failed."""
        return any(finding.state is State.FAILED for finding in self.findings)

    def as_json(self) -> dict[str, Json]:
        """The report as one JSON object."""
        return {**asdict(self), "broken": self.broken}


async def check(
    name: str,
    config: Mapping[str, Json],
    data_dir: Path,
    *,
    scenarios: int,
    seed: int,
    access: Access | None = None,
) -> Report:
    """Examine the environment of that name. `access` is what it may reach.

    Raises UnknownEnvironment, and ValueError for a bad config.

    What the environment or its judge does wrong is a finding.
    """
    try:
        environment = registry.build(name, config, data_dir, access)
    except PluginFault as fault:
        return _faulty(name, "protocol", fault)
    try:
        return await _Check(environment, name, config, data_dir, scenarios, seed, access).report()
    except PluginFault as fault:
        return _faulty(name, "protocol", fault)
    except EpisodeFailed as failure:
        return _faulty(name, "episodes", failure)
    finally:
        environment.close()


def _faulty(name: str, what: str, fault: Exception) -> Report:
    finding = Finding(what, State.FAILED, str(fault))
    return Report(name, None, 0, (), None, None, None, None, (finding,))


class _JudgeFailed(Exception):
    """The judge raised, or (`needs` something) cannot be built without settings."""

    def __init__(self, message: str, *, needs: bool = False) -> None:
        super().__init__(message)
        self.state = State.WARNING if needs else State.FAILED


@dataclass
class _Check:
    """One examination."""

    environment: Environment
    name: str
    config: Mapping[str, Json]
    data_dir: Path
    count: int
    seed: int
    access: Access | None

    async def report(self) -> Report:
        drawn = {split: self._drawn(split) for split in get_args(Split)}
        scenarios = drawn["train"][: self.count]
        findings = [Finding("protocol", State.OK, "every call kept to it"), *self._splits(drawn)]
        findings += self._leaks(scenarios[:_READ])
        findings += await self._repeated(scenarios[:_REPEATED])
        try:
            judge = self._judge()
            figures, played = await self._figures(judge, scenarios)
        except _JudgeFailed as failure:
            said = f"the default judge {self.environment.default_judge!r} {failure}; no reward could be examined"
            findings.append(Finding("judge", failure.state, said))
            return Report(self.name, None, len(scenarios), (), None, None, None, None, findings)
        by_name = {each.agent: each for each in figures}
        oracle, rand = by_name.get("oracle"), by_name["random"]
        headroom = _less(oracle.mean_reward if oracle else None, rand.mean_reward)
        quiet = _without_signal(played["random"])
        findings += [
            *_rewards([paid for each in played.values() for paid in each]),
            *_teaching(oracle, rand, headroom, quiet),
            *_cheating(figures, rand, oracle, headroom),
        ]
        seconds = fmean(paid.played.seconds for paid in played["random"])
        solvable = oracle.success if oracle else None
        return Report(self.name, judge.name, len(scenarios), figures, headroom, solvable, quiet, seconds, findings)

    def _drawn(self, split: Split) -> list[Scenario]:
        return self.environment.scenarios(split, max(self.count, _SPLIT_SAMPLE), self.seed)

    def _judge(self) -> Judge:
        try:
            return build_judge(self.environment.default_judge, {}, JudgeServices(rubric=self.environment.rubric))
        except Exception as error:
            raise _JudgeFailed(f"cannot be used without settings ({error})", needs=True) from error

    async def _figures(
        self, judge: Judge, scenarios: Sequence[Scenario]
    ) -> tuple[list[AgentFigures], dict[str, list[Paid]]]:
        """What each agent earned, and its rollouts: those that do not cheat, then those that do."""
        played: dict[str, list[Paid]] = {}

        async def of(name: str, agent_for: Callable[[Scenario], Agent], group: int = 1) -> None:
            played[name] = [
                paid for scenario in scenarios for paid in await self._paid(judge, scenario, agent_for, group)
            ]

        if isinstance(self.environment, Solvable):
            solution = self.environment.solution
            await of("oracle", lambda scenario: agents.play_turns(solution(scenario)))
        rng = Random(f"environment check:{self.seed}")
        await of("random", lambda _: agents.random_agent(rng), GROUP_SIZE)
        await of("no-op", lambda _: agents.silent)
        await of("empty calls", lambda _: agents.empty_calls(rng))
        final = {name for each in played.values() for paid in each if (name := paid.played.ended_by)}
        tools = played["random"][0].played.tools

        def cheat(scenario: Scenario, name: str) -> Agent:
            return agents.cheats(rng, agents.Known(final, _others(scenario, scenarios)), tools)[name]

        for name in agents.cheats(rng, agents.Known(final, scenarios), tools):
            await of(name, partial(cheat, name=name))
        return [_figures(name, paid) for name, paid in played.items()], played

    async def _paid(
        self, judge: Judge, scenario: Scenario, agent_for: Callable[[Scenario], Agent], group: int
    ) -> list[Paid]:
        plays = [await play(self.environment, scenario, agent_for(scenario)) for _ in range(group)]
        try:
            return await pay(self.environment, judge, plays)
        except PluginFault:
            raise
        except Exception as error:
            raise _JudgeFailed(f"raised {type(error).__name__}: {error}") from error

    def _splits(self, drawn: Mapping[Split, Sequence[Scenario]]) -> Iterator[Finding]:
        """Whether held-out scenarios are train scenarios too, and whether the same seed gives the same."""
        again = self.environment.scenarios("train", 1, self.seed, start=1)
        if len(drawn["train"]) > 1 and again[0] != drawn["train"][1]:
            yield Finding("same scenarios", State.FAILED, "scenario number 1 is another when it is asked for alone")
        shared = leaks.shared_tasks(drawn)
        if shared:
            said = "; ".join(f"{count} tasks of {one} are in {other}" for (one, other), count in shared.items())
            yield Finding("held-out scenarios", State.FAILED, said)
        else:
            sizes = ", ".join(f"{len(set(map(leaks.task_of, each)))} of {split}" for split, each in drawn.items())
            yield Finding("held-out scenarios", State.OK, f"no task is in two splits ({sizes} were compared)")

    def _leaks(self, scenarios: Sequence[Scenario]) -> Iterator[Finding]:
        """Whether references can be read without doing the task."""
        found = leaks.leaks(self.environment, scenarios)
        for where, told in found.items():
            said = f"{where}, in {len(told)} of {len(scenarios)} scenarios, such as {told[0]}"
            yield Finding("leaks", State.FAILED, said)
        if not found:
            yield Finding("leaks", State.OK, "no reference can be read from its task, opening messages or tools")

    async def _repeated(self, scenarios: Sequence[Scenario]) -> list[Finding]:
        """Whether the same calls have the same outcome: beside other rollouts, and in another process."""
        first = await transcripts.record(self.environment, scenarios, self.seed)
        fresh = registry.build(self.name, self.config, self.data_dir, self.access)
        try:
            repeated = {"beside other rollouts": await transcripts.record(fresh, scenarios, self.seed, together=True)}
        finally:
            fresh.close()
        place = transcripts.Place(self.name, dict(self.config), str(self.data_dir), len(scenarios), self.seed)
        elsewhere = await asyncio.to_thread(transcripts.in_another_process, place)
        if elsewhere is not None:
            repeated["in another process"] = elsewhere
        for where, other in repeated.items():
            if (difference := transcripts.difference(first, other)) is not None:
                return [
                    Finding("determinism", State.FAILED, f"the same calls gave something else {where}: {difference}")
                ]
        said = f"the same calls gave the same texts and outcomes {' and '.join(repeated)}"
        return [Finding("determinism", State.OK, said)]


def _others(scenario: Scenario, scenarios: Sequence[Scenario]) -> Sequence[Scenario]:
    """Those with another reference; any, if there are none."""
    return [each for each in scenarios if each.reference != scenario.reference] or scenarios


def _figures(name: str, paid: Sequence[Paid]) -> AgentFigures:
    rewards = [each.reward for each in paid if each.reward is not None]
    if not rewards:
        return AgentFigures(name, len(paid), None, None)
    success = fmean(each.success for each in paid if each.reward is not None)
    return AgentFigures(name, len(paid), fmean(rewards), success)


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _without_signal(paid: Sequence[Paid]) -> float | None:
    """The share of groups whose rewards are all equal, or that have fewer than two."""
    groups: dict[str, list[float]] = {}
    for each in paid:
        groups.setdefault(each.played.scenario.id, []).extend([] if each.reward is None else [each.reward])
    if not any(groups.values()):
        return None
    return fmean(len(rewards) < 2 or max(rewards) == min(rewards) for rewards in groups.values())


def _rewards(paid: Sequence[Paid]) -> Iterator[Finding]:
    """Whether the parts are parts: none of them is the sum of the others, and every rollout is scored."""
    unscored = [each for each in paid if each.reward is None]
    if len(unscored) == len(paid):
        yield Finding("judge", State.FAILED, f"it scored no rollout: {unscored[0].unscored}")
        return
    if unscored:
        said = f"{len(unscored)} of {len(paid)} rollouts have no score: {unscored[0].unscored}"
        yield Finding("judge", State.WARNING, said)
    scored = [each for each in paid if each.reward]
    doubled = [name for name in {name for each in scored for name in each.parts} if _is_a_total(name, scored)]
    if doubled:
        said = f"the part {doubled[0]!r} is the sum of the others, so that everything is paid twice"
        yield Finding("rewards", State.FAILED, said)
    else:
        yield Finding("rewards", State.OK, "finite, and the sum of their parts")


def _is_a_total(name: str, paid: Sequence[Paid]) -> bool:
    """Whether that part is what the others add up to, in every rollout that earned something by several parts."""
    several = [each for each in paid if sum(value != 0 for value in each.parts.values()) > 2]
    return len(several) > 1 and all(
        abs(2 * each.parts.get(name, 0.0) - (each.reward or 0.0)) < 1e-9 for each in several
    )


def _teaching(
    oracle: AgentFigures | None, rand: AgentFigures, headroom: float | None, quiet: float | None
) -> Iterator[Finding]:
    """Whether there is something to learn, and whether a beginner's rollouts differ."""
    if oracle is None:
        said = "not known: the environment has no solution() that could be played as the oracle"
        yield Finding("headroom", State.WARNING, said)
    elif headroom is not None and oracle.success is not None:
        state = State.OK if headroom > 0 else State.FAILED
        yield Finding("headroom", state, f"the oracle earns {headroom:.3f} more than the random agent")
        solved = State.OK if oracle.success == 1 else State.WARNING if oracle.success > 0 else State.FAILED
        yield Finding("solvable", solved, f"the oracle solves {oracle.success:.0%} of the scenarios")
    if quiet is not None:
        state = State.WARNING if quiet > _QUIET else State.OK
        yield Finding("signal", state, f"{quiet:.0%} of the random agent's groups of {GROUP_SIZE} have equal rewards")
    if rand.success:
        state = State.FAILED if oracle and oracle.success and rand.success >= oracle.success else State.WARNING
        yield Finding("chance", state, f"the random agent solves {rand.success:.0%}")


def _cheating(
    figures: Sequence[AgentFigures], rand: AgentFigures, oracle: AgentFigures | None, headroom: float | None
) -> Iterator[Finding]:
    """Whether an agent that does not do the job earns as one that does."""
    honest = ("oracle", "random")
    paying = False
    for each in figures:
        if each.agent in honest or each.mean_reward is None or rand.mean_reward is None:
            continue
        gained = each.mean_reward - rand.mean_reward
        share = gained / headroom if headroom is not None and headroom > 0 else None
        solves = bool(each.success) and each.success >= _PAYING  # type: ignore[operator]
        if solves or (share is not None and share >= _PAYING):
            paying = True
            what = f" and earns {share:.0%} of the headroom" if share is not None else ""
            yield Finding(
                "cheating", State.FAILED, f"the agent that {_does(each.agent)} solves {each.success:.0%}{what}"
            )
    if not paying:
        yield Finding("cheating", State.OK, "no agent that does not do the job is paid as one that does")


def _does(agent: str) -> str:
    return {"no-op": "does nothing", "empty calls": "makes empty calls"}.get(agent, agent)
