"""Runs that learn nothing: the rule that stops them, and the warnings about them."""

from collections.abc import Mapping, Sequence
from typing import Any

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.stored_request import NoSignalRule
from learnloop_service.environment.wording import counted
from learnloop_service.training.no_signal import NoSignal


class NoSignalStop(Exception):
    """Raised when a run's own rule stops it: too many iterations in a row taught nothing."""

    def __init__(self, message: str, rule: NoSignalRule) -> None:
        super().__init__(message)
        self.rule = rule


async def check_rule(database: Database, run_id: str, rule: NoSignalRule) -> None:
    """Raise NoSignalStop if the run's rule stops it now."""
    if rule.action == "continue":
        return
    async with database() as tx:
        run = await tx.get_one(Run, run_id)
    unfinished = run.next_iteration <= run.iterations_total
    if run.no_signal_iterations >= rule.after and (unfinished or rule.action == "fail"):
        raise NoSignalStop(
            f"{counted(run.no_signal_iterations, 'iteration')} in a row taught nothing, the last one because "
            f"{NoSignal(run.no_signal or NoSignal.EQUAL_REWARDS).explanation} (on_no_signal)",
            rule,
        )


def warnings_of(iterations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return warnings about a run's newest iterations, given in order. The baseline does not count."""
    trained = [iteration for iteration in iterations if iteration["iteration"] > 0]
    idle = [iteration for iteration in trained if iteration["no_signal"] is not None]
    if not idle:
        return []
    newest = idle[-1]
    return [
        f"{len(idle)} of {counted(len(trained), 'iteration')} taught nothing, the last of them iteration "
        f"{newest['iteration']}: {NoSignal(newest['no_signal']).explanation}."
    ]
