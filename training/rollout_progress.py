"""How far the rollouts of an iteration are, by phase."""

from collections import Counter
from collections.abc import Callable

from training.phases import Phase
from training.types import Progress

Report = Callable[[Progress], None]


class RolloutProgress:
    """Counts the rollouts of one iteration. Those of a phase that are made at the same time are counted together."""

    def __init__(self, iteration: int, report: Report) -> None:
        self._iteration = iteration
        self._report = report
        self._total: Counter[Phase] = Counter()
        self._done: Counter[Phase] = Counter()

    def expect(self, phase: Phase, more: int) -> None:
        """That many more are to be made. Counting starts anew if none was left."""
        if self._done[phase] == self._total[phase]:
            self._done[phase] = self._total[phase] = 0
        self._total[phase] += more
        self._publish(phase)

    def found(self, phase: Phase) -> None:
        """One was in the journal. It is not reported, because this process has made no progress."""
        self._done[phase] += 1

    def made(self, phase: Phase) -> None:
        """One was made."""
        self._done[phase] += 1
        self._publish(phase)

    def _publish(self, phase: Phase) -> None:
        self._report(Progress(self._iteration, phase, self._done[phase], self._total[phase]))
