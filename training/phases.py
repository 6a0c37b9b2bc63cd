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
    SHOWCASE = "showcase"
    VALIDATION_SAMPLED = "validation.sampled"
    VALIDATION_GREEDY = "validation.greedy"
    TEST_SAMPLED = "test.sampled"
    TEST_GREEDY = "test.greedy"

    @property
    def rollout_phase(self) -> Phase:
        """The phase in which these rollouts are made."""
        return {Purpose.TRAIN: Phase.ROLLOUT, Purpose.SHOWCASE: Phase.REFLECT}.get(self, Phase.EVALUATE)

    @property
    def judge_phase(self) -> Phase:
        """The phase whose usage includes their verdicts."""
        return Phase.JUDGE if self is Purpose.TRAIN else self.rollout_phase
