"""What a run is doing, by name: the phases of an iteration, and what rollouts are made for."""

from enum import StrEnum


class Phase(StrEnum):
    """A part of an iteration. Progress, time and usage are reported by phase."""

    ROLLOUT = "rollout"
    JUDGE = "judge"
    TRAIN = "train"
    REFLECT = "reflect"
    EVALUATE = "evaluate"


class Purpose(StrEnum):
    """What rollouts are made for. The values are parts of journal entry names (training/journal.py)."""

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
        """The phase whose usage their verdicts count as."""
        return Phase.JUDGE if self is Purpose.TRAIN else self.rollout_phase
