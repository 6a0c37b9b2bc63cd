"""From verdicts to rewards. Trajectory rewards are set only here."""

import dataclasses
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import fsum
from statistics import fmean

from learnloop.outcome import MAX_REWARD
from learnloop_service.environment.base import CUT_OFF, Environment, Rewarded, Scenario
from learnloop_service.environment.explained import why_no_success
from learnloop_service.environment.trace import span
from learnloop_service.judges.base import Candidate, Judge, Judgement, Score, checked
from learnloop_service.training.advantages import advantages, differ
from learnloop_service.training.inclusion import weight
from learnloop_service.training.rollout.histories import transcript_of
from learnloop_service.training.types import Group, RewardSummary, Rollout, ScoredRollout


def assign_rewards(
    environment: Environment, scenario: Scenario, rollouts: Sequence[Rollout], judgement: Judgement
) -> Group:
    """Reward the rollouts of one scenario by their verdicts. The group says whether it can be trained on.

    Failed rollouts, and those that the judge could not score, have no reward.
    """
    finished = [rollout for rollout in rollouts if rollout.failure is None]
    scores = dict(zip((rollout.id for rollout in finished), judgement.scores, strict=True))
    calls = tuple(judgement.calls)
    scored = _with_advantages(
        _none_better_cut_off(
            _scored(environment, rollout, scores.get(rollout.id) or Score(None, f"the rollout failed: {rollout.error}"))
            for rollout in rollouts
        )
    )
    rewards = [rollout.reward for rollout in scored if rollout.reward is not None]
    if len(rewards) < 2:
        return Group(scenario, scored, "unscored", calls)
    if not differ(rewards):
        return Group(scenario, scored, "no_signal", calls)
    return Group(scenario, scored, None, calls)


async def judge_group(judge: Judge, scenario: Scenario, rollouts: Sequence[Rollout]) -> Judgement:
    """Judge the rollouts of a scenario that did not fail, together.

    If the judge raises, none of them has a score, and the error is given as the reason.
    """
    candidates = [
        Candidate(rollout.id, rollout.outcome, transcript_of(rollout.trajectory))
        for rollout in rollouts
        if rollout.error is None
    ]
    if not candidates:
        return Judgement([])
    try:
        with span(
            "judge", judge=judge.name, scenario_id=scenario.id, attempts=[candidate.id for candidate in candidates]
        ) as traced:
            judgement = await checked(judge, scenario, candidates)
            traced.output = [
                {"id": candidate.id, "score": score.value, "explanation": score.explanation}
                for candidate, score in zip(candidates, judgement.scores, strict=True)
            ]
        return judgement
    except Exception as error:
        reason = f"the judge {judge.name} failed: {type(error).__name__}: {error}"
        return Judgement([Score(None, reason)] * len(candidates))


def _scored(environment: Environment, rollout: Rollout, score: Score) -> ScoredRollout:
    if score.value is None:
        return ScoredRollout(rollout, score, None, {}, success=False)
    parts = environment.reward(rollout.outcome, score.value)
    reward = _sum(parts.values())
    if reward is None:
        unusable = Score(
            None, f"the reward is not a number from {-MAX_REWARD:g} to {MAX_REWARD:g}: {dict(parts)}"[:500]
        )
        return ScoredRollout(rollout, unusable, None, {}, success=False)
    rollout.trajectory.reward = reward
    success = environment.success(rollout.outcome, score.value)
    why = None if success else why_no_success(environment, rollout.scenario, rollout.outcome, score.value)
    return ScoredRollout(rollout, score, reward, parts, success, why_no_success=why)


def _none_better_cut_off(rollouts: Iterable[ScoredRollout]) -> list[ScoredRollout]:
    """Lower the rewards of rollouts that were cut off to the lowest one of the others, where rewards are below 0."""
    group = list(rollouts)
    uncut = [
        rollout.reward for rollout in group if rollout.reward is not None and CUT_OFF not in rollout.rollout.outcome
    ]
    if (lowest := min(uncut, default=0.0)) >= 0:
        return group
    for number, rollout in enumerate(group):
        if rollout.reward is not None and CUT_OFF in rollout.rollout.outcome:
            rollout.rollout.trajectory.reward = lowest
            group[number] = dataclasses.replace(rollout, reward=lowest, reward_parts={CUT_OFF: lowest})
    return group


def _sum(parts: Iterable[float]) -> float | None:
    """Return the sum of a reward's parts, or None if it is not a finite number that can be computed with."""
    try:
        total = fsum(parts)  # fsum gives the same result on every Python version
    except (OverflowError, ValueError):  # the latter for infinities of both signs
        return None
    return total if abs(total) <= MAX_REWARD else None


def _with_advantages(rollouts: Sequence[ScoredRollout]) -> tuple[ScoredRollout, ...]:
    """Add the advantages. Rollouts without a reward have none."""
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    remaining = iter(advantages(rewards))
    return tuple(
        rollout if rollout.reward is None else dataclasses.replace(rollout, advantage=next(remaining))
        for rollout in rollouts
    )


def summarise(rollouts: Iterable[ScoredRollout]) -> RewardSummary:
    """Return the weighted mean and median of the rewards, and their range and number; rollouts without a reward or
    without a weight are left out."""
    weighted = sorted(
        (rollout.reward, weight(rollout)) for rollout in rollouts if rollout.reward is not None and weight(rollout)
    )
    if not weighted:
        return RewardSummary(None, None, None, None, 0)
    return RewardSummary(
        _weighted_mean(weighted), _weighted_median(weighted), weighted[0][0], weighted[-1][0], len(weighted)
    )


def _weighted_mean(weighted: Iterable[tuple[float, float]]) -> float | None:
    """Return the mean of values with their weights; None if the weights are 0."""
    values = list(weighted)
    total = fsum(share for _, share in values)
    return fsum(value * share for value, share in values) / total if total else None


def _weighted_median(ascending: Sequence[tuple[float, float]]) -> float:
    """Return the middle of the values on both sides of half of the weight."""
    below = list(accumulate(share for _, share in ascending))
    half = below[-1] / 2
    lower, upper = bisect_left(below, half), bisect_right(below, half)
    return (ascending[lower][0] + ascending[upper][0]) / 2


def success_rate(rollouts: Iterable[ScoredRollout]) -> float | None:
    """Return the weighted share of successful rollouts. Failed ones count as unsuccessful; unscored ones are left
    out."""
    return _weighted_mean((rollout.success, weight(rollout)) for rollout in rollouts if _counts(rollout))


def _counts(rollout: ScoredRollout) -> bool:
    return rollout.reward is not None or rollout.rollout.error is not None


def successes(rollouts: Iterable[ScoredRollout]) -> dict[str, float]:
    """Return the success rate of each scenario, by its id. Scenarios without one are left out."""
    by_scenario: dict[str, list[ScoredRollout]] = {}
    for rollout in rollouts:
        by_scenario.setdefault(rollout.rollout.scenario.id, []).append(rollout)
    rates = {id: success_rate(of_scenario) for id, of_scenario in by_scenario.items()}
    return {id: rate for id, rate in rates.items() if rate is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class HeldOutFigures:
    """Figures of a held-out evaluation."""

    scenarios: int
    success: float
    mean_reward: float
    malformed: float


def held_out_figures(rollouts: Sequence[ScoredRollout], samples: int, *, by_scenario: bool) -> HeldOutFigures:
    """Return the figures of an evaluation that made `samples` rollouts of each scenario.

    With `by_scenario` each scenario counts once, as in the differences between evaluations. Otherwise each rollout
    does, and a repeated scenario counts again, as in earlier versions.
    """
    groups: list[list[ScoredRollout]] = [list(rollouts)]
    if by_scenario:
        by_id: dict[str, list[ScoredRollout]] = {}
        for rollout in rollouts:
            by_id.setdefault(rollout.rollout.scenario.id, []).append(rollout)
        groups = list(by_id.values())
    return HeldOutFigures(
        len(groups) if by_scenario else len(rollouts) // samples,
        _mean_of_groups([[rollout.success for rollout in group if _counts(rollout)] for group in groups]),
        _mean_of_groups([[rollout.reward for rollout in group if rollout.reward is not None] for group in groups]),
        _mean_of_groups([[_is_malformed(rollout) for rollout in group] for group in groups]),
    )


def _mean_of_groups(groups: Iterable[Sequence[float]]) -> float:
    """Return the mean of the groups' means, without empty groups; 0 if there is no other."""
    filled = [group for group in groups if group]
    if len({len(group) for group in filled}) > 1:
        return fmean(map(fmean, filled))
    return fmean(value for group in filled for value in group) if filled else 0.0  # rounded once instead of twice


def malformed_share(rollouts: Iterable[ScoredRollout]) -> float | None:
    """Return the weighted share of rollouts that ended with a malformed tool call; None if there are none."""
    return _weighted_mean((_is_malformed(rollout), weight(rollout)) for rollout in rollouts)


def _is_malformed(rollout: ScoredRollout) -> bool:
    return rollout.rollout.outcome.get("finish") == "malformed"


def rewarded(groups: Iterable[Group]) -> list[Rewarded]:
    """Return what a reflective environment learns from, in the order in which the iteration is saved."""
    return [
        Rewarded(group.scenario, scored.rollout.outcome, scored.reward)
        for group in groups
        for scored in group.rollouts
        if scored.reward is not None
    ]
