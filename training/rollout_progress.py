"""Progress of an iteration's rollouts, by phase."""

from collections import Counter
from collections.abc import Callable

from training.phases import Phase
from training.types import Progress

Report = Callable[[Progress], None]


class RolloutProgress:
    """Counts the rollouts of one iteration. Concurrent rollouts of the same phase are counted together."""

    def __init__(self, iteration: int, report: Report) -> None:
        self._iteration = iteration
        self._report = report
        self._total: Counter[Phase] = Counter()
        self._done: Counter[Phase] = Counter()

    def expect(self, phase: Phase, more: int) -> None:
        """Expect `more` rollouts. The count restarts if none were pending."""
        if self._done[phase] == self._total[phase]:
            self._done[phase] = self._total[phase] = 0
        self._total[phase] += more
        self._publish(phase)

    def found(self, phase: Phase) -> None:
        """Count a rollout that was in the journal. It is not reported, because this process did not make it."""
        self._done[phase] += 1

    def made(self, phase: Phase) -> None:
        """Count and report a finished rollout."""
        self._done[phase] += 1
        self._publish(phase)

    def _publish(self, phase: Phase) -> None:
        self._report(Progress(self._iteration, phase, self._done[phase], self._total[phase]))
