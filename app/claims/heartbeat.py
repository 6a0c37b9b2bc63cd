"""Renews a worker's leases on a separate thread and connection, so that a blocked event loop does not lose its work."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from sqlalchemy import URL, create_engine, tuple_, update

from learnloop_service.app.claims.lease import Lease, until
from learnloop_service.app.db.connecting import connect_blocking
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.errors import DATABASE_DOWN
from learnloop_service.app.logs import RepeatedLog
from learnloop_service.environment.first_line import first_line

_GIVE_UP_FRACTION = 0.8
"""Fraction of a lease's time without renewal after which the work stops, before another worker can claim it."""

log = structlog.get_logger(__name__)


class Heartbeat:
    """Renews the leases that `leases()` returns, every third of their time, and calls `lost` with those that are gone.

    Both callbacks run on the heartbeat's thread. A lease that `leases()` leaves out is not renewed, and expires.
    """

    def __init__(
        self, url: URL, ttl_s: float, leases: Callable[[], Sequence[Lease[Any]]], lost: Callable[[Lease[Any]], None]
    ) -> None:
        limit_ms = int(ttl_s * 1000 / 3)
        self._engine = create_engine(
            url,
            pool_size=1,
            max_overflow=0,
            pool_pre_ping=True,
            # The server ends the transaction with the statement. If we had to commit, a process that froze before the
            # commit would keep the rows locked, and no other worker could take them over.
            isolation_level="AUTOCOMMIT",
            creator=lambda: connect_blocking(
                url, {"statement_timeout": str(limit_ms)}, connect_timeout=5, tcp_user_timeout=limit_ms
            ),
        )
        self._ttl_s = ttl_s
        self._repeated = RepeatedLog(log)
        self._leases = leases
        self._lost = lost
        self._renewed: dict[Lease[Any], float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat_for_ever, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop renewing. Leases that are not released expire."""
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

    def _beat(self, leases: Sequence[Lease[Any]]) -> None:
        sent_at = time.monotonic()
        try:
            renewed = self._renew(leases)
        except Exception as error:  # any: if the thread ended, every lease would expire unnoticed
            unexpected = None if isinstance(error, DATABASE_DOWN) else error
            self._repeated.warning("leases not renewed", error=first_line(error), exc_info=unexpected)
            self._lose_overdue(leases, sent_at - _GIVE_UP_FRACTION * self._ttl_s)
            return
        for lease in leases:
            if lease in renewed:
                self._renewed[lease] = sent_at
            else:
                self._lost(lease)

    def _lose_overdue(self, leases: Sequence[Lease[Any]], since: float) -> None:
        for lease in leases:
            if self._renewed[lease] < since:
                self._lost(lease)

    def _renew(self, leases: Sequence[Lease[Any]]) -> set[Lease[Any]]:
        """Renew the leases, and return those that we still hold."""
        renewed: set[Lease[Any]] = set()
        with self._engine.connect() as connection:
            for table in {lease.table for lease in leases}:
                by_key = {(lease.id, lease.epoch): lease for lease in leases if lease.table is table}
                renew = (
                    update(table)
                    .where(tuple_(table.id, table.epoch).in_(by_key), table.status == RunStatus.RUNNING)
                    .values(lease_until=until(self._ttl_s))
                    .returning(table.id, table.epoch)
                )
                renewed |= {by_key[id, epoch] for id, epoch in connection.execute(renew)}
        return renewed
