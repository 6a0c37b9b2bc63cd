"""Progress of an iteration's rollouts, by phase."""

from collections import Counter
from collections.abc import Callable

from learnloop_service.environment.first_line import last_line
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import FailedRollouts, IterationProgress

Report = Callable[[IterationProgress], None]


class FailureCount:
    """Counts the failed rollouts of one iteration, over all its phases."""

    def __init__(self, iteration: int) -> None:
        self.so_far = FailedRollouts(iteration, 0, 0, None)

    def count(self, error: str | None) -> None:
        """Count a finished rollout. `error` says why it failed."""
        so_far = self.so_far
        first = so_far.first if error is None else so_far.first or last_line(error)
        self.so_far = FailedRollouts(so_far.iteration, so_far.failed + (error is not None), so_far.finished + 1, first)


class RolloutProgress:
    """Counts the rollouts of one iteration. Concurrent rollouts of the same phase are counted together."""

    def __init__(self, iteration: int, report: Report, failures: FailureCount) -> None:
        self._iteration = iteration
        self._report = report
        self._total: Counter[Phase] = Counter()
        self._done: Counter[Phase] = Counter()
        self._failures = failures

    def expect(self, phase: Phase, more: int) -> None:
        """Expect `more` rollouts. The count restarts if none were pending."""
        if self._done[phase] == self._total[phase]:
            self._done[phase] = self._total[phase] = 0
        self._total[phase] += more
        self._publish(phase)

    def loaded(self, phase: Phase, error: str | None) -> None:
        """Count a rollout from the journal. It is not reported, because this process did not make it."""
        self._count(phase, error)

    def finished(self, phase: Phase, error: str | None) -> None:
        """Count and report a finished rollout. `error` says why it failed."""
        self._count(phase, error)
        self._publish(phase)

    def _count(self, phase: Phase, error: str | None) -> None:
        self._done[phase] += 1
        self._failures.count(error)

    def _publish(self, phase: Phase) -> None:
        self._report(
            IterationProgress(self._iteration, phase, self._done[phase], self._total[phase], self._failures.so_far)
        )
