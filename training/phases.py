"""The phases of an iteration, and the purposes of rollouts."""

from enum import StrEnum


class Phase(StrEnum):
    """A part of an iteration. Progress, time and usage are reported by phase."""

    ROLLOUT = "rollout"
    JUDGE = "judge"
    TRAIN = "train"
    REFLECT = "reflect"
    EVALUATE = "evaluate"


class Purpose(StrEnum):
    """Purpose of rollouts. The values are parts of journal entry names (training/journal.py)."""

    TRAIN = "train"
    REPLACEMENT = "train.replacement"
    """Training rollouts in place of groups that taught nothing."""
    SHOWCASE = "showcase"
    VALIDATION_SAMPLED = "validation.sampled"
    VALIDATION_GREEDY = "validation.greedy"
    TEST_SAMPLED = "test.sampled"
    TEST_GREEDY = "test.greedy"

    @property
    def rollout_phase(self) -> Phase:
        """The phase in which these rollouts are made."""
        if self.is_trained_on:
            return Phase.ROLLOUT
        return Phase.REFLECT if self is Purpose.SHOWCASE else Phase.EVALUATE

    @property
    def judge_phase(self) -> Phase:
        """The phase whose usage includes their verdicts."""
        return Phase.JUDGE if self.is_trained_on else self.rollout_phase

    @property
    def is_trained_on(self) -> bool:
        """Whether these rollouts are for training."""
        return self in (Purpose.TRAIN, Purpose.REPLACEMENT)
