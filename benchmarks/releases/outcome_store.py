"""Simulated releases through the store: sessions and feedback in Postgres, and the watcher's look after each day.

Postgres has a clock of its own for this: `clock_timestamp` and `now` of a schema that is searched before its own ones.
"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
from sqlalchemy import insert, select, text
from ulid import ULID

from benchmarks.durability.harness import Migrated
from benchmarks.releases.outcome_worlds import DAYS, WINDOW, simulated
from benchmarks.releases.simulation import started
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Feedback, Release, ReleaseUnit
from learnloop_service.app.domain.release_rules import ReleaseRules
from learnloop_service.app.domain.release_state import Arm, ReleaseReason, ReleaseState
from learnloop_service.app.releases.counts import CellCounts, cells_json, confirmation
from learnloop_service.app.releases.decision import Failures, ReleaseFacts, ReleaseVerdict, decide
from learnloop_service.app.releases.look import look
from learnloop_service.app.releases.outcome_test import REPORTED, SILENT, USUAL, outcomes_of
from learnloop_service.training.statistics.two_arms import Cell, effect_estimate

_START = datetime(2026, 3, 2, tzinfo=UTC)
_DAY, _WINDOW = timedelta(days=1), timedelta(days=WINDOW)
_CLOCK = (
    "CREATE SCHEMA simulated",
    "CREATE TABLE simulated.clock (at timestamptz NOT NULL)",
    f"INSERT INTO simulated.clock VALUES ('{_START.isoformat()}')",
    *(
        f"CREATE FUNCTION simulated.{name}() RETURNS timestamptz STABLE RETURN (SELECT at FROM simulated.clock)"
        for name in ("clock_timestamp", "now")
    ),
    "ALTER ROLE CURRENT_USER SET search_path = simulated, public, pg_catalog",
)


async def simulate_clock(store: Migrated) -> None:
    """Give the database a clock that stands still until it is set."""
    async with store.engine.begin() as connection:
        for statement in _CLOCK:
            await connection.execute(text(statement))
    await store.engine.dispose()


async def set_clock(database: Database, at: datetime) -> None:
    """Set the clock of `simulate_clock`."""
    async with database.begin() as tx:
        await tx.execute(text("UPDATE simulated.clock SET at = :at"), {"at": at})


class StoredRelease:
    """A simulated release in the database."""

    def __init__(self, database: Database, rules: ReleaseRules, number: int, units: int, effect: float) -> None:
        self._database, self._rules, self._name = database, rules, f"n{number}"
        self._world = simulated(np.random.default_rng((number, 3_000)), units, effect)
        self._random = Random(number)
        self._events: list[dict[str, Any]] = []
        self._sessions = [self._session_rows(unit) for unit in range(units)]
        self._events.sort(key=lambda event: event["received_at"])

    async def lived(self) -> tuple[str, list[str]]:
        """Live through the release. Returns how it ended, and what the store said that the simulation does not."""
        await set_clock(self._database, _START)
        release_id = await started(self._database, self._name, self._rules, bytes(16))
        await self._insert(AgentSession, [row for rows in self._sessions for row in rows[:-1]])
        different, promoted_on = list[str](), None
        for day in range(DAYS + 2 * WINDOW + 1):
            if day < DAYS:
                await self._open(day, release_id if promoted_on is None else None)
            until = _START + (day + 1) * _DAY
            due = [event for event in self._events if event["received_at"] <= until]
            del self._events[: len(due)]
            await self._insert(Feedback, due)
            await set_clock(self._database, until + timedelta(minutes=1))
            async with self._database() as tx:
                before = await tx.get_one(Release, release_id)
            await look(self._database, release_id)
            async with self._database() as tx:
                after = await tx.get_one(Release, release_id)
            if before.state == ReleaseState.RUNNING and day >= WINDOW:
                different += await self._compared(after, day - WINDOW)
            if after.state == ReleaseState.PROMOTED and promoted_on is None:
                promoted_on = day
            if after.state not in (ReleaseState.RUNNING, ReleaseState.PROMOTED):
                break
        if promoted_on is not None:
            different += await self._confirmed(after, promoted_on)
        return f"{after.state} {after.reason or ''}".strip(), different

    def _session_rows(self, unit: int) -> list[dict[str, Any]]:
        """Return the sessions of a user before the release and the one in it, and note what is said of them."""
        world, random = self._world, self._random
        exposed = _START + _DAY * (int(world.day[unit]) + random.uniform(0.001, 0.999))
        rows = [
            self._row(unit, _START - _DAY * random.uniform(WINDOW + 1, 50)) for _ in range(int(world.earlier[unit]))
        ]
        values = [1.0] * int(world.earlier_sum[unit]) + [0.0] * (len(rows) - int(world.earlier_sum[unit]))
        for row, value in zip(rows, values, strict=True):
            self._say({"session_id": row["id"]}, row["opened_at"], value)
        last = self._row(unit, exposed, arm=self._arm(unit))
        self._say({"session_id": last["id"]}, exposed, float(world.outcome[unit]))
        self._say(
            {"user_hash": last["user_hash"], "asked_as": f"p/{self._name}"}, exposed + _WINDOW, world.second[unit]
        )
        return [*rows, last]

    def _arm(self, unit: int) -> Arm:
        return Arm.CANDIDATE if self._world.candidate[unit] else Arm.STABLE

    def _row(self, unit: int, opened_at: datetime, **more: Any) -> dict[str, Any]:
        return {
            "id": str(ULID.from_datetime(opened_at)),
            "project": "p",
            "asked_model": self._name,
            "model": "p/m@1",
            "backend": "embedded",
            "seed": 0,
            "explicit_restart": False,
            "labels": {"kind": str(self._world.kind[unit])},
            "state": "ended",
            "opened_at": opened_at,
            "expires_at": opened_at + _DAY,
            "user_hash": f"{self._name} {unit:05}",
            **more,
        }

    def _say(self, subject: dict[str, str], since: datetime, value: float) -> None:
        """Note an opinion within the window after `since`, unless the user is silent."""
        if value == 0.5:
            return
        at, id = since + _WINDOW * self._random.uniform(0.001, 0.999), str(ULID())
        row = {"id": id, "project": "p", "event_id": id, "confidence": 1.0, "source": "api", "occurred_at": at}
        type = "thumbs_up" if value else "thumbs_down"
        none = dict.fromkeys(("session_id", "user_hash", "asked_as"))
        self._events.append({**none, **row, **subject, "type": type, "received_at": at})

    async def _insert(self, table: Any, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            async with self._database.begin() as tx:
                await tx.execute(insert(table), rows)

    async def _open(self, day: int, release_id: str | None) -> None:
        """Open the sessions of the day, in which users meet their arms of the release if it is given."""
        opened = [self._sessions[unit][-1] for unit in np.flatnonzero(self._world.day == day).tolist()]
        await self._insert(AgentSession, [{**row, "release_id": release_id} for row in opened])
        if release_id is not None:
            unit = {"release_id": release_id, "probability": 0.5, "stage": 0}
            met = [(row["user_hash"], row["arm"], row["opened_at"]) for row in opened]
            await self._insert(
                ReleaseUnit, [{**unit, "unit": user, "arm": arm, "exposed_at": at} for user, arm, at in met]
            )

    async def _compared(self, row: Release, last: int) -> list[str]:
        """Return what differs from the decision on the users who came until that day."""
        cells = await self._cells(row.id, np.flatnonzero(self._world.day <= last), self._world.outcome)
        if not cells or row.looked_at is None or row.started_at is None:
            return []
        days = (row.looked_at - row.started_at) / _DAY
        decision = decide(self._rules, ReleaseFacts(ReleaseState.RUNNING, 0, 0, cells, Failures(), days))
        states = {ReleaseVerdict.PROMOTE: ReleaseState.PROMOTED, ReleaseVerdict.ROLL_BACK: ReleaseState.ROLLED_BACK}
        evidence, where = row.evidence or {}, f"{self._name}, look at the users until day {last}"
        pairs = {
            "state": (row.state, states.get(decision.verdict, ReleaseState.RUNNING)),
            "outcome": (evidence.get("outcome"), asdict(decision.outcome)),
            "cells": (evidence.get("cells"), cells_json(cells)),
        }
        return [
            f"{where}: {name} is {is_now}, not {other}" for name, (is_now, other) in pairs.items() if is_now != other
        ]

    async def _confirmed(self, row: Release, promoted_on: int) -> list[str]:
        """Return what differs from the effects in the windows that were open at the promotion."""
        day = self._world.day
        which = np.flatnonzero((day > promoted_on - WINDOW) & (day <= promoted_on))
        values = (self._world.outcome, self._world.second)
        expected = [
            effect_estimate(outcomes_of(await self._cells(row.id, which, outcomes)), USUAL) for outcomes in values
        ]
        async with self._database() as tx:
            found = await confirmation(tx, row.id)
        if found != expected:
            return [f"{self._name}: the confirmation is {found}, not {expected}"]
        ends = (ReleaseState.CONFIRMED, ReleaseState.PROMOTED)
        kept = row.state in ends or row.reason == ReleaseReason.NOVELTY
        return [] if kept else [f"{self._name}: {row.state} after a promotion"]

    async def _cells(self, release_id: str, which: Any, outcomes: Any) -> CellCounts:
        """Count those users by what the simulation made of them and what the store expected of them."""
        query = select(ReleaseUnit.unit, ReleaseUnit.forecast).where(ReleaseUnit.release_id == release_id)
        async with self._database() as tx:
            forecasts = dict((await tx.execute(query)).all())
        counts: dict[str, dict[Cell, int]] = {}
        for unit in which.tolist():
            outcome, candidate = float(outcomes[unit]), bool(self._world.candidate[unit])
            cell = Cell(0.5, candidate, outcome, forecasts[self._sessions[unit][-1]["user_hash"]])
            of_name = counts.setdefault(SILENT if outcome == 0.5 else REPORTED, {})
            of_name[cell] = of_name.get(cell, 0) + 1
        return dict(counts)
