"""Shows the stages of a long command as bars on a terminal, and nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from learnloop_service.app.cli.terminal import progress

Advance = Callable[[str, int, int | None], None]
"""Reports progress: the stage, the amount done, and the total if it is known."""


@contextmanager
def stage_bar() -> Iterator[Advance]:
    """Yield the function that reports progress. The bars disappear at the end."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal) as bar:
        stages: dict[str, TaskID] = {}

        def advance(stage: str, finished: int, total: int | None) -> None:
            if stage not in stages:
                stages[stage] = bar.add_task(stage, total=total)
            bar.update(stages[stage], completed=finished)

        yield advance
