"""Sixteen clients under one budget for a day, their workers killed with SIGKILL again and again.

    python -m benchmarks.durability.day_budget [--kills 40] [--clients 16] [--calls 60] [--seed 0]

Worker processes drive runs of one project, half of them started by one API key. Each run makes calls to a provider that
writes every call on a bill, which no kill can touch. The project has a budget of tokens, of dollars and of tokens at
once, and the key one of tokens, all for less than the runs need. The workers are killed at random moments until the
budgets are used up. Then these are raised, and the kills go on.

It fails if at any look the bill or what the database counts is above a budget, if the bill ever says more than the
database (something was lost), if a run fails, if too little of the budget is used, or if after the raise not every run
completes. What the database counts above the bill is what killed workers had reserved: it is printed.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

from sqlalchemy import delete, insert, select

from benchmarks import processes
from benchmarks.durability.harness import Killer, Victim, judge, migrated, workplace
from learnloop_service.app.aio.retry import retry_while_database_is_down
from learnloop_service.app.claims.day_budget import BudgetOwner, usage_of
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run, Setting
from learnloop_service.app.runs.store import RunStore
from tests.fakes.day_spender import MOST, billed
from tests.fakes.stored_request import stored_run

_PROJECT, _KEY = BudgetOwner("project", "bench", "bench"), BudgetOwner("key", "01BENCHKEY", "agent")
_PROCESSES = 4
_LONGEST_S = 1_200.0


@dataclass
class Watch:
    """What looks at the bill and at the database found."""

    database: Database
    bill: Path
    limits: dict[BudgetOwner, dict[str, float]]
    keyed: set[str]
    looks: int = 0
    violations: list[str] = field(default_factory=list)
    over: dict[str, float] = field(default_factory=dict)

    async def set_limits(self, limits: dict[BudgetOwner, dict[str, float]]) -> None:
        """Set the budgets in place of the ones before."""
        async with self.database.begin() as tx:
            for owner, most in limits.items():
                await tx.execute(delete(Setting).where(Setting.name == owner.setting))
                await tx.execute(insert(Setting).values(name=owner.setting, value=most))
        self.limits = limits

    async def look(self) -> Counter[str]:
        """Look; on a machine that stalls, its database may end the transaction."""
        return await retry_while_database_is_down(self._look)

    async def _look(self) -> Counter[str]:
        """Compare, and return the number of runs by status, or stopped by a budget.

        The bill is read first: what is on it was reserved before.
        """
        self.looks += 1
        calls = billed(self.bill)
        of_key = [tokens for id, tokens in calls if id in self.keyed]
        bills = {_PROJECT: [tokens for _, tokens in calls], _KEY: of_key}
        async with self.database() as tx:
            for owner, tokens in bills.items():
                used = await usage_of(tx, owner, datetime.now(UTC).date())
                self._compare(owner, {"tokens": sum(tokens), "usd": len(tokens) * (MOST.usd or 0.0)}, used)
            rows = (await tx.execute(select(Run.status, Run.shortage))).all()
        # One that waits only for what others have reserved is tried again soon.
        is_stopped = [status == "queued" and shortage and not shortage.get("waits") for status, shortage in rows]
        pairs = zip(rows, is_stopped, strict=True)
        statuses = Counter("stopped" if stopped else status for (status, _), stopped in pairs)
        if statuses["failed"]:
            self.violations.append("a run failed")
        return statuses

    def _compare(self, owner: BudgetOwner, bill: Mapping[str, float], used: Mapping[str, float]) -> None:
        for unit, amount in bill.items():
            counted = used[unit] + used[f"reserved_{unit}"]
            if amount > counted + 1e-6:
                self.violations.append(f"{owner.kind}: {amount:g} {unit} on the bill, {counted:g} counted")
            if counted > self.limits[owner].get(f"max_{unit}", float("inf")) + 1e-6:
                self.violations.append(f"{owner.kind}: {counted:g} {unit} counted, above the budget")
            if used[f"reserved_{unit}"] > self.limits[owner].get(f"max_{unit}_at_once", float("inf")) + 1e-6:
                self.violations.append(f"{owner.kind}: {used[f'reserved_{unit}']:g} {unit} reserved at once")
            self.over[f"{owner.kind} {unit}"] = round(counted - amount, 3)

    async def until(self, statuses: set[str], what: str) -> None:
        """Look until all runs have one of the statuses."""
        async with asyncio.timeout(_LONGEST_S):
            while not set(await self.look()) <= statuses:
                await asyncio.sleep(0.05)
        print(f"{what} after {self.looks} looks", flush=True)


def _worker(url: str, bill: Path, calls: int, slots: int) -> AbstractContextManager[Victim]:
    flags = (url, str(bill), str(calls), str(slots))
    return cast("AbstractContextManager[Victim]", processes.module("tests.fakes.day_spender", *flags))


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures."""
    clients, calls, bill = options.clients, options.calls, directory / "bill"
    needed = clients * calls * MOST.tokens
    (directory / "postgres").mkdir()
    async with migrated(directory / "postgres") as it:
        runs = []
        for number in range(clients):
            by = {"id": _KEY.id, "name": _KEY.name} if number % 2 else None
            runs.append(stored_run(model_project=_PROJECT.id, started_by=by))
            await RunStore(it.database).create(runs[-1])
        watch = Watch(it.database, bill, {}, {run.id for run in runs if run.started_by})
        at_once = MOST.tokens * clients * 3 / 4
        project = {"max_tokens": needed // 3, "max_usd": clients * calls * (MOST.usd or 0) / 2}
        few = {_PROJECT: project | {"max_tokens_at_once": at_once}, _KEY: {"max_tokens": needed // 8}}
        await watch.set_limits(few)
        start = partial(_worker, it.url, bill, calls, clients // _PROCESSES)
        killer, began = Killer([start] * _PROCESSES, random.Random(options.seed), most_s=2.0), time.monotonic()
        try:
            await killer.start()
            killing = asyncio.create_task(killer.kill(options.kills // 2))
            await watch.look()
            while not killing.done():
                await watch.look()
                await asyncio.sleep(0.05)
            await watch.until({"stopped", "completed"}, "everything is stopped")
            stopped, used = await watch.look(), dict(watch.over)
            billed_share = sum(tokens for _, tokens in billed(bill)) / few[_PROJECT]["max_tokens"]
            kept = sum(used[f"project {unit}"] for unit in ("tokens",)) / few[_PROJECT]["max_tokens"]
            await watch.set_limits(
                {owner: {name: 100 * most for name, most in of.items()} for owner, of in few.items()}
            )
            killing = asyncio.create_task(killer.kill(options.kills))
            await watch.until({"completed"}, "everything is completed")
            await killing
        finally:
            killer.close()
        made = Counter(id for id, _ in billed(bill))
        return {
            "kills": killer.kills,
            "looks": watch.looks,
            "seconds": round(time.monotonic() - began, 1),
            "stopped_by_budgets": stopped["stopped"],
            "share_of_the_budget_billed_when_stopped": round(billed_share, 3),
            "share_kept_for_killed_workers_then": round(kept, 3),
            "counted_above_the_bill_at_the_end": watch.over,
            "violations": sorted(set(watch.violations)),
            "every_budget_stopped_some": stopped["stopped"] > 0,
            "all_calls_made": all(made[run.id] >= calls for run in runs),
            "budget_was_used": billed_share + kept > 0.9 - clients * MOST.tokens / few[_PROJECT]["max_tokens"],
        }


def main() -> None:
    """Print the figures; fail if a budget was exceeded, or anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--clients", type=int, default=16, help="runs at the same time, a multiple of 4")
    parser.add_argument("--calls", type=int, default=60, help="calls that each run makes")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    options = parser.parse_args()
    with workplace() as directory:
        figures = asyncio.run(measure(directory, options))
    true = ("every_budget_stopped_some", "all_calls_made", "budget_was_used")
    judge(figures, {"violations": [], **dict.fromkeys(true, True)})


if __name__ == "__main__":
    main()
