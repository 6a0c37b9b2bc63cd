"""Renews a worker's leases from a thread with a connection of its own: a blocked event loop does not lose its runs."""

import threading
import time
from collections.abc import Callable, Sequence

import structlog
from sqlalchemy import URL, create_engine, tuple_, update

from app.db.tables import Run
from app.domain.run_state import RunStatus
from app.errors import DATABASE_DOWN
from app.logs import RepeatedLog
from app.runs.leases import Lease, until

_PATIENCE = 0.8
"""Of a lease's time without a renewal, after which the work stops: before somebody else may begin."""

log = structlog.get_logger(__name__)


class Heartbeat:
    """Beats every third of a lease's time for the leases that `leases()` tells, and tells `lost` those that are gone.

    Both are called on the thread. A lease that `leases` leaves out is renewed no more, and lapses.
    """

    def __init__(
        self, url: URL, ttl_s: float, leases: Callable[[], Sequence[Lease]], lost: Callable[[Lease], None]
    ) -> None:
        self._engine = create_engine(
            url,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            # The server ends the transaction with the statement. If that were left to us, a process that was frozen in
            # between would keep the runs' rows locked, and nobody could take the runs over.
            isolation_level="AUTOCOMMIT",
            connect_args={
                "connect_timeout": 5,
                "tcp_user_timeout": int(ttl_s * 1000 / 3),
                "options": f"-c statement_timeout={int(ttl_s * 1000 / 3)}",
            },
        )
        self._ttl_s = ttl_s
        self._repeated = RepeatedLog(log)
        self._leases = leases
        self._lost = lost
        self._renewed: dict[Lease, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_for_ever, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def close(self) -> None:
        """Stop. Leases lapse if nobody releases them."""
        self._stop.set()
        self._thread.join(self._ttl_s)
        self._engine.dispose()

    def _beat_for_ever(self) -> None:
        while not self._stop.wait(self._ttl_s / 3):
            leases = list(self._leases())
            now = time.monotonic()
            self._renewed = {lease: self._renewed.get(lease, now) for lease in leases}
            if leases:
                self._beat(leases)

    def _beat(self, leases: Sequence[Lease]) -> None:
        sent = time.monotonic()
        try:
            held = self._renew(leases)
        except Exception as error:  # any: if the thread ended, every lease would lapse and nobody be told
            unexpected = None if isinstance(error, DATABASE_DOWN) else error
            self._repeated.warning(
                "leases not renewed", error=next(iter(str(error).splitlines()), ""), exc_info=unexpected
            )
            self._tell_overdue(leases, sent - _PATIENCE * self._ttl_s)
            return
        for lease in leases:
            if (lease.run_id, lease.epoch) in held:
                self._renewed[lease] = sent
            else:
                self._lost(lease)

    def _tell_overdue(self, leases: Sequence[Lease], since: float) -> None:
        for lease in leases:
            if self._renewed[lease] < since:
                self._lost(lease)

    def _renew(self, leases: Sequence[Lease]) -> set[tuple[str, int]]:
        mine = [(lease.run_id, lease.epoch) for lease in leases]
        renew = (
            update(Run)
            .where(tuple_(Run.id, Run.epoch).in_(mine), Run.status == RunStatus.RUNNING)
            .values(lease_until=until(self._ttl_s))
            .returning(Run.id, Run.epoch)
        )
        with self._engine.connect() as connection:
            return {(run_id, epoch) for run_id, epoch in connection.execute(renew)}
