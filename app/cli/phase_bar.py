"""Shows the phases of a long command on stderr, with a bar where it is known how much there is to do.

If stderr is no terminal, each phase is a line.
"""

from types import TracebackType

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from learnloop_service.app.cli.terminal import plain, progress


class PhaseBar:
    """The bar of the current phase. Earlier phases stay visible with the time that they took."""

    def __init__(self) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        self._bars = Progress(*columns, TimeElapsedColumn(), console=progress, disable=not progress.is_terminal)

    def __enter__(self) -> "PhaseBar":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end_phase()
        self._bars.stop()

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin the next phase, with that much work if it is known."""
        self._end_phase()
        self._bars.add_task(name, total=total)
        if not progress.is_terminal:
            progress.print(plain(name), soft_wrap=True)

    def advance(self, amount: int) -> None:
        """Add to the work that is done."""
        if self._bars.tasks:
            self._bars.advance(self._bars.tasks[-1].id, amount)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(plain(text), soft_wrap=True)

    def _end_phase(self) -> None:
        if self._bars.tasks:
            last = self._bars.tasks[-1]
            total = last.total or 1
            self._bars.update(last.id, total=total, completed=total)
            self._bars.stop_task(last.id)
