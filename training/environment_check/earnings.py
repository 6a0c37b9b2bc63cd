"""What the agents' rewards say about how well an environment can teach."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from learnloop_service.training.advantages import differ
from learnloop_service.training.environment_check.play import Paid
from learnloop_service.training.environment_check.report import AgentFigures, EnvironmentFinding, FindingState

GROUP_SIZE = 8
_CHEAT_PAYS_FROM = 0.5
"""A cheat pays if it earns this share of the headroom, or solves this share of the scenarios."""
_MAX_WITHOUT_SIGNAL = 0.5
"""Share of groups without signal above which the check warns."""
_HONEST_AGENTS = ("oracle", "random")
_DOES = {"no-op": "does nothing", "empty calls": "makes empty calls"}


@dataclass(frozen=True, slots=True)
class Earned:
    """The rewards of all agents."""

    agents: Sequence[AgentFigures]
    headroom: float | None
    """Mean reward of the oracle minus that of the random agent."""
    groups_without_signal: float | None

    def of(self, name: str) -> AgentFigures | None:
        """Return the figures of the agent of that name."""
        return next((figures for figures in self.agents if figures.agent == name), None)

    def share_of_headroom(self, agent: AgentFigures) -> float | None:
        """Return the share of the headroom that the agent earns, or None if it is unknown."""
        chance = self.of("random")
        gained = _reward_difference(agent, chance)
        return (
            gained / self.headroom if gained is not None and self.headroom is not None and self.headroom > 0 else None
        )


def earned(played: Mapping[str, Sequence[Paid]]) -> Earned:
    """Summarize the rollouts of each agent."""
    figures = {name: _figures(name, paid) for name, paid in played.items()}
    headroom = _reward_difference(figures.get("oracle"), figures.get("random"))
    return Earned(list(figures.values()), headroom, _share_without_signal(played["random"]))


def _figures(name: str, paid: Sequence[Paid]) -> AgentFigures:
    rewards = [rollout.reward for rollout in paid if rollout.reward is not None]
    if not rewards:
        return AgentFigures(name, len(paid), None, None)
    success = fmean(rollout.success for rollout in paid if rollout.reward is not None)
    return AgentFigures(name, len(paid), fmean(rewards), success)


def _reward_difference(one: AgentFigures | None, other: AgentFigures | None) -> float | None:
    """Return the difference of two agents' mean rewards."""
    if one is None or other is None or one.mean_reward is None or other.mean_reward is None:
        return None
    return one.mean_reward - other.mean_reward


def _share_without_signal(paid: Sequence[Paid]) -> float | None:
    """Return the share of groups whose rewards are all equal, or that have fewer than two."""
    groups: dict[str, list[float]] = {}
    for rollout in paid:
        groups.setdefault(rollout.played.scenario.id, []).extend([] if rollout.reward is None else [rollout.reward])
    if not any(groups.values()):
        return None
    return fmean(not differ(rewards) for rewards in groups.values())


def of_rewards(paid: Sequence[Paid]) -> Iterator[EnvironmentFinding]:
    """Check that every rollout is scored, and that no part of the reward is the sum of the others."""
    unscored = [rollout for rollout in paid if rollout.reward is None]
    if len(unscored) == len(paid):
        yield EnvironmentFinding("judge", FindingState.FAILED, f"it scored no rollout: {unscored[0].unscored}")
        return
    if unscored:
        text = f"{len(unscored)} of {len(paid)} rollouts have no score: {unscored[0].unscored}"
        yield EnvironmentFinding("judge", FindingState.WARNING, text)
    scored = [rollout for rollout in paid if rollout.reward]
    doubled = [name for name in {name for rollout in scored for name in rollout.parts} if _is_a_total(name, scored)]
    if doubled:
        text = f"the part {doubled[0]!r} is the sum of the others, so that everything is paid twice"
        yield EnvironmentFinding("rewards", FindingState.FAILED, text)
    else:
        yield EnvironmentFinding("rewards", FindingState.OK, "finite, and the sum of their parts")


def _is_a_total(name: str, paid: Sequence[Paid]) -> bool:
    """Return whether that part is the sum of the others in every rollout with a reward from several parts."""
    several = [rollout for rollout in paid if sum(value != 0 for value in rollout.parts.values()) > 2]
    return len(several) > 1 and all(
        abs(2 * rollout.parts.get(name, 0.0) - (rollout.reward or 0.0)) < 1e-9 for rollout in several
    )


def of_teaching(earned: Earned) -> Iterator[EnvironmentFinding]:
    """Check that there is something to learn, and that a random agent's rollouts differ."""
    oracle, chance = earned.of("oracle"), earned.of("random")
    if oracle is None:
        text = "not known: the environment has no solution() that could be played as the oracle"
        yield EnvironmentFinding("headroom", FindingState.WARNING, text)
    elif earned.headroom is not None and oracle.success is not None:
        state = FindingState.OK if earned.headroom > 0 else FindingState.FAILED
        yield EnvironmentFinding(
            "headroom", state, f"the oracle earns {earned.headroom:.3f} more than the random agent"
        )
        solved = (
            FindingState.OK
            if oracle.success == 1
            else FindingState.WARNING
            if oracle.success > 0
            else FindingState.FAILED
        )
        yield EnvironmentFinding("solvable", solved, f"the oracle solves {oracle.success:.0%} of the scenarios")
    if (quiet := earned.groups_without_signal) is not None:
        state = FindingState.WARNING if quiet > _MAX_WITHOUT_SIGNAL else FindingState.OK
        yield EnvironmentFinding(
            "signal", state, f"{quiet:.0%} of the random agent's groups of {GROUP_SIZE} have equal rewards"
        )
    if chance and chance.success:
        state = (
            FindingState.FAILED
            if oracle and oracle.success and chance.success >= oracle.success
            else FindingState.WARNING
        )
        yield EnvironmentFinding("chance", state, f"the random agent solves {chance.success:.0%}")


def of_cheating(earned: Earned) -> Iterator[EnvironmentFinding]:
    """Check that no agent that does not do the task earns as much as one that does."""
    paying = [agent for agent in earned.agents if agent.agent not in _HONEST_AGENTS and _pays(agent, earned)]
    for agent in paying:
        share = earned.share_of_headroom(agent)
        what = "" if share is None else f" and earns {share:.0%} of the headroom"
        text = f"the agent that {_DOES.get(agent.agent, agent.agent)} solves {agent.success or 0:.0%}{what}"
        yield EnvironmentFinding("cheating", FindingState.FAILED, text)
    if not paying:
        yield EnvironmentFinding(
            "cheating", FindingState.OK, "no agent that does not do the job is paid as one that does"
        )


def _pays(agent: AgentFigures, earned: Earned) -> bool:
    return max(agent.success or 0.0, earned.share_of_headroom(agent) or 0.0) >= _CHEAT_PAYS_FROM
