"""Why an iteration had no training signal. GRPO learns from differences between the rewards of a group."""

from collections.abc import Sequence
from enum import StrEnum

from learnloop_service.training.advantages import differ
from learnloop_service.training.types import Group


class NoSignal(StrEnum):
    """Reason why none of an iteration's groups could be trained on."""

    MALFORMED = "malformed"
    CONSTANT_REWARD = "constant_reward"
    EQUAL_REWARDS = "equal_rewards"
    JUDGE_SILENT = "judge_silent"
    ROLLOUTS_FAILED = "rollouts_failed"

    @property
    def explanation(self) -> str:
        """Explanation for users."""
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    NoSignal.MALFORMED: "every rollout ended with a malformed tool call or a reply without one",
    NoSignal.CONSTANT_REWARD: "all rollouts have the same reward",
    NoSignal.EQUAL_REWARDS: "within each group all rollouts have the same reward",
    NoSignal.JUDGE_SILENT: "the judge scored fewer than two rollouts of every group",
    NoSignal.ROLLOUTS_FAILED: "fewer than two rollouts of every group finished",
}


def no_signal_of(groups: Sequence[Group]) -> NoSignal | None:
    """Return why an iteration had no training signal; None if it had one, or if it has no groups (the baseline)."""
    if not groups or any(group.skipped is None for group in groups):
        return None
    scored = [rollout for group in groups for rollout in group.rollouts]
    finished = [rollout for rollout in scored if rollout.rollout.failure is None]
    if finished and all(rollout.rollout.outcome.get("finish") == "malformed" for rollout in finished):
        return NoSignal.MALFORMED
    if all(group.skipped == "unscored" for group in groups):
        enough = any(sum(rollout.rollout.failure is None for rollout in group.rollouts) > 1 for group in groups)
        return NoSignal.JUDGE_SILENT if enough else NoSignal.ROLLOUTS_FAILED
    rewards = [rollout.reward for rollout in scored if rollout.reward is not None]
    return NoSignal.EQUAL_REWARDS if differ(rewards) else NoSignal.CONSTANT_REWARD
