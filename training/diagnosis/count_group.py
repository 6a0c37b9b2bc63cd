"""Counts the rollouts of a group by their symptoms, and measures what their rewards are made of."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import fsum
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from learnloop_service.training.diagnosis.facts import GroupFacts
from learnloop_service.training.diagnosis.true_success import TrueSuccess
from learnloop_service.training.inclusion import weight
from learnloop_service.training.rollout.histories import messages_of
from learnloop_service.training.types import FailureKind, Group, Rollout, ScoredRollout

if TYPE_CHECKING:  # importing it takes long
    from art import Trajectory
    from art.trajectories import History
    from openai.types.chat.chat_completion import Choice

INFRASTRUCTURE = frozenset(kind for kind in FailureKind if kind.is_lost) | {FailureKind.TIMEOUT}
"""Failures of a server, the network or a sandbox, or of a limit of time."""


def count_group(rollouts: Sequence[ScoredRollout], limit: int, true_success: TrueSuccess) -> GroupFacts:
    """Return the counts of these rollouts. `limit` is the largest number of tokens of a reply."""
    played = [scored.rollout for scored in rollouts]
    with_reward = [scored for scored in rollouts if scored.reward is not None]
    cut = {rollout.id for rollout in played if truncated(rollout, limit)}
    bad = {rollout.id for rollout in played if malformed(rollout)}
    pairs, misordered = _order(with_reward, true_success)
    checked = [true_success[scored.rollout.id] for scored in with_reward if scored.rollout.id in true_success]
    variance, dominance = _dominance(with_reward)
    rewards = [scored.reward or 0.0 for scored in with_reward] or [0.0]
    return GroupFacts(
        rollouts=len(played),
        infrastructure=sum(map(infrastructure_failed, played)),
        truncated=len(cut),
        malformed=len(bad),
        truncated_malformed=len(cut & bad),
        agent_errors=sum(map(agent_failed, played)),
        out_of_turns=sum(map(out_of_turns, played)),
        tool_calls=sum(_counted(rollout, "tool_calls") for rollout in played),
        tool_errors=sum(map(tool_errors, played)),
        unscored=sum(scored.reward is None and scored.rollout.failure is None for scored in rollouts),
        scored=len(with_reward),
        replies=len({last_reply(scored.rollout) for scored in with_reward}),
        scores=len({scored.score.value for scored in with_reward}),
        successes=sum(scored.success for scored in with_reward),
        checked=len(checked),
        true_successes=sum(checked),
        pairs=pairs,
        misordered=misordered,
        variance=round(variance, 6),
        dominance=round(dominance, 6),
        weight=round(sum(abs(scored.advantage or 0.0) * sampled_count(scored.rollout) for scored in with_reward), 2),
        lowest=round(min(rewards), 6),
        highest=round(max(rewards), 6),
        spread=round(pstdev(rewards), 6),
    )


def facts_of_group(group: Group, limit: int, true_success: TrueSuccess) -> GroupFacts:
    """Return the counts of one scenario's rollouts."""
    counts = count_group(group.rollouts, limit, true_success)
    return replace(counts, scenario=group.scenario.id, represents=weight(group.rollouts[0]))


def infrastructure_failed(rollout: Rollout) -> bool:
    """Return whether the rollout failed because a server, the network or a limit of time did."""
    return rollout.failure is not None and rollout.failure.kind in INFRASTRUCTURE


def agent_failed(rollout: Rollout) -> bool:
    """Return whether the rollout failed because an agent with a loop of its own did."""
    return rollout.failure is not None and rollout.failure.kind is FailureKind.AGENT


def malformed(rollout: Rollout) -> bool:
    """Return whether the rollout ended with a malformed reply."""
    return rollout.failure is None and rollout.outcome.get("finish") == "malformed"


def out_of_turns(rollout: Rollout) -> bool:
    """Return whether the rollout ended because its turns were used up."""
    return rollout.failure is None and rollout.outcome.get("finish") == "out_of_turns"


def truncated(rollout: Rollout, limit: int) -> bool:
    """Return whether one of the rollout's replies was cut off at the limit of tokens."""
    return any(choice.finish_reason == "length" or _tokens(choice) >= limit for choice in choices_of(rollout))


def tool_errors(rollout: Rollout) -> int:
    """Return how many of the rollout's tool calls were answered by an error; 0 where the environment counts none."""
    return _counted(rollout, "tool_errors")


def sampled_count(rollout: Rollout) -> int:
    """Return how many tokens were sampled in the rollout."""
    return sum(map(_tokens, choices_of(rollout)))


def choices_of(rollout: Rollout) -> "Iterator[Choice]":
    """Yield the replies that were sampled in a rollout."""
    histories: tuple[Trajectory | History, ...] = (rollout.trajectory, *rollout.trajectory.additional_histories)
    for history in histories:
        yield from (item for item in history.messages_and_choices if not isinstance(item, dict))


def last_reply(rollout: Rollout) -> str:
    """Return what the model wrote last: its text, and its calls as `NAME(ARGUMENTS)`."""
    replies = [message for message in messages_of(rollout.trajectory) if message.get("role") == "assistant"]
    if not replies:
        return ""
    functions = [call["function"] for call in replies[-1].get("tool_calls") or () if "function" in call]
    calls = [f"{function['name']}({_text(function['arguments'])})" for function in functions]
    return " ".join([_text(replies[-1].get("content") or ""), *calls]).strip()


def _tokens(choice: "Choice") -> int:
    return len((choice.logprobs and choice.logprobs.content) or ())


def _counted(rollout: Rollout, key: str) -> int:
    count = rollout.outcome.get(key, 0)
    return count if isinstance(count, int) else 0


def _order(rollouts: Sequence[ScoredRollout], true_success: TrueSuccess) -> tuple[int, float]:
    """Return the number of pairs of a true success and a true failure, and how many of them the judge's scores put in
    the wrong order: 1 - AUC is their share."""
    checked = [
        (scored.score.value or 0.0, true_success[scored.rollout.id])
        for scored in rollouts
        if scored.rollout.id in true_success
    ]
    right = [score for score, is_success in checked if is_success]
    wrong = [score for score, is_success in checked if not is_success]
    misordered = fsum(1.0 if good < bad else 0.5 for good in right for bad in wrong if good <= bad)
    return len(right) * len(wrong), misordered


def _dominance(rollouts: Sequence[ScoredRollout]) -> tuple[float, float]:
    """Return the variance of the rewards, and their covariance with the part that explains most of it. Both are 0
    unless two parts or more vary, because a single part always explains everything."""
    rewards = [scored.reward or 0.0 for scored in rollouts]
    names = {name for scored in rollouts for name in scored.reward_parts}
    parts = [[scored.reward_parts.get(name, 0.0) for scored in rollouts] for name in sorted(names)]
    varying = [part for part in parts if min(part) < max(part)]
    if len(varying) < 2:
        return 0.0, 0.0
    return _covariance(rewards, rewards), max(0.0, *(_covariance(part, rewards) for part in varying))


def _covariance(one: Sequence[float], other: Sequence[float]) -> float:
    means = fmean(one), fmean(other)
    return fmean((a - means[0]) * (b - means[1]) for a, b in zip(one, other, strict=True))


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
