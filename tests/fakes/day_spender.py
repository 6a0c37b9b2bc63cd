"""A worker process whose runs make calls to a provider that bills each one, in a file that outlives the process.

    python -m tests.fakes.day_spender URL BILL CALLS RUNS

It drives RUNS runs at the same time until each has made CALLS calls. A call reserves up to `MOST`, and takes less.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from learnloop_service.app import instruments
from learnloop_service.app.claims.lease import Lease
from learnloop_service.app.db.database import Database, make_database, make_engine, parse_url
from learnloop_service.app.db.tables import Run
from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.domain.stored_request import StoredBudget
from learnloop_service.app.runs.budget import Meter, PriorUsage
from learnloop_service.app.runs.claims import Limits, RunClaims
from learnloop_service.app.runs.day_spending import spending
from learnloop_service.app.runs.store import PendingRequests, RunStore
from learnloop_service.app.worker.runner import Activity, Runner
from learnloop_service.training.budget import Usage
from learnloop_service.training.phases import Phase
from learnloop_service.training.types import IterationProgress

MOST = Usage(60, 40, 0.01)
LEASE_S = 8.0
_LONGEST_S = 0.05
"""Longest time that a call takes."""


def billed(bill: Path) -> list[tuple[str, int]]:
    """Return the run and the tokens of each call so far."""
    lines = bill.read_text().splitlines() if bill.exists() else []
    return [(run_id, int(tokens)) for run_id, tokens in (line.split() for line in lines)]


class BilledRuns:
    """Runs that do nothing but call."""

    instruments = instruments.RUNS

    def __init__(self, database: Database, bill: Path, calls: int, slots: int) -> None:
        worker = f"w{os.getpid()}"
        self.claims = RunClaims(
            database, worker, ttl_s=LEASE_S, limits=Limits(), backends=["embedded"], engine="here", price_per_hour=None
        )
        self.slots = slots
        self._database, self._bill, self._calls = database, bill, calls

    async def drive(self, row: Run, lease: Lease[Run], activity: Activity) -> None:
        meter = Meter(StoredBudget(), PriorUsage())
        async with spending(self._database, row, lease, meter):
            while sum(id == row.id for id, _ in billed(self._bill)) < self._calls:
                async with meter.reserve(Phase.ROLLOUT, lambda: MOST) as reservation:
                    await asyncio.sleep(random.uniform(0.0, _LONGEST_S))
                    tokens = random.randint(20, MOST.tokens)
                    with self._bill.open("a") as file:  # a line is one write, which a SIGKILL does not tear
                        file.write(f"{row.id} {tokens}\n")
                    reservation.spend(Usage(0, tokens, MOST.usd))

    async def report(
        self, lease: Lease[Run], progress: IterationProgress | None, wait_reason: str | None, driven_s: float
    ) -> PendingRequests:
        return await RunStore(self._database).heartbeat(lease, progress, wait_reason)

    def pause_reason(self, error: BaseException) -> str | None:
        return None

    async def suspend(self, lease: Lease[Run], reason: str, shortage: Mapping[str, Any] | None = None) -> None:
        await RunStore(self._database).suspend(lease, reason, shortage)

    async def finish(self, lease: Lease[Run], status: RunStatus, error: str | None, result: None) -> None:
        await RunStore(self._database).finish(lease, status, error=error)


async def work(url: str, bill: Path, calls: int, slots: int) -> None:
    """Work until the process is ended."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    parsed = parse_url(url)
    engine = make_engine(parsed)
    runner = Runner(parsed, [BilledRuns(make_database(engine), bill, calls, slots)], ttl_s=LEASE_S, phase_timeout_s=600)
    runner.start()
    await stop.wait()
    await runner.close()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
