"""Watches releases in every service process and worker: looks at each one soon after users met something new, and
closes the windows that are still open when it has ended.

No lease is needed, as runs and evaluations have one: a look is a single short transaction that locks the release's row.
Of several processes one looks and the others pass by. One that is killed has done nothing, or everything; one that is
frozen in the middle loses its connection after a few seconds, and with it the lock.
"""

from datetime import timedelta

import structlog
from sqlalchemy import and_, exists, func, literal_column, or_, select

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, Release, ReleaseObservation, ReleaseUnit
from learnloop_service.app.domain.evaluation_state import TERMINAL
from learnloop_service.app.domain.release_rules import Guardrail
from learnloop_service.app.domain.release_state import LIVE, SPLITTING, ReleaseState
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.app.releases.look import look

EVERY_S = 1.0
"""Interval at which a process asks which releases are due. A bad candidate meets more users the longer it is."""
_LEAST_OFTEN = timedelta(minutes=1)
"""Longest time between two looks at a release, whatever happens."""

log = structlog.get_logger(__name__)


class ReleaseWatcher:
    """Looks at the releases that are due. One per process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._failed = RepeatedLog(log)

    async def look_at_due(self) -> None:
        """Look at every release that is due. An error at one of them does not keep the others waiting.

        Raises DATABASE_DOWN.
        """
        async with self._database() as tx:
            due = (await tx.execute(_DUE)).scalars().all()
        for release_id in due:
            try:
                await look(self._database, release_id)
            except DATABASE_DOWN:
                raise
            except Exception as error:
                self._failed.error("a release could not be looked at", release_id=release_id, exc_info=error)


_WAITED = Release.looked_at < func.clock_timestamp() - _LEAST_OFTEN
_OBSERVED = ReleaseObservation.release_id == Release.id
_DUE = (
    select(Release.id)
    .where(
        or_(
            and_(Release.state.in_(sorted(LIVE)), or_(Release.looked_at.is_(None), _WAITED)),
            and_(
                Release.state.in_(sorted(SPLITTING)),
                or_(
                    exists().where(_OBSERVED, ReleaseObservation.look.is_(None)),
                    exists().where(
                        _OBSERVED,
                        ReleaseObservation.late_look.is_(None),
                        # In the form of the partial index, which Postgres recognizes only literally.
                        ReleaseObservation.values.bool_op("?")(literal_column(f"'{Guardrail.THUMBS_DOWN_1H}'")),
                    ),
                ),
            ),
            and_(
                Release.state == ReleaseState.TRIAL,
                exists().where(EvaluationJob.id == Release.evaluation_id, EvaluationJob.status.in_(sorted(TERMINAL))),
            ),
            and_(
                Release.state.not_in(sorted(LIVE)),
                _WAITED,
                or_(
                    Release.confirming_id.is_not(None),
                    exists().where(ReleaseUnit.release_id == Release.id, ReleaseUnit.closed_at.is_(None)),
                ),
            ),
        ),
    )
    .order_by(Release.looked_at.nulls_first(), Release.id)
)
"""Selects the live releases with something new, and those that were not looked at for a while, until their last window
is closed and their promotion is confirmed."""
