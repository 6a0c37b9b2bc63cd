"""Simulated releases: how often a harmless candidate is taken back, and how many users meet a harmful one.

    python -m benchmarks.releases.simulation [--count 1000] [--stored 30]

Each of `--count` releases of every kind goes through the pure decision function. Users, their arms (by the two hashes)
and what each arm's answers are like are drawn from seeds. `--stored` releases go through the real store as well: rows
in Postgres and the watcher's look, for the same users. Every look must find the same evidence, number by number.

Exits with 1 if 95% of the candidates with 10 points more malformed replies are not taken back before 300 users met
them, if more than 1% of the first 300 releases of a checkpoint against itself are taken back, or if any evidence
differs.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sqlalchemy import insert
from ulid import ULID

from benchmarks.durability.harness import migrated
from benchmarks.releases.simulated_users import KINDS_OF_CANDIDATE, Kind, User, salt, simulation_rules, users
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Promotion, Release, ReleaseObservation
from learnloop_service.app.domain.release_rules import Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import Arm, ReleaseState
from learnloop_service.app.releases import moves
from learnloop_service.app.releases.assignment import assignment
from learnloop_service.app.releases.decision import Failures, ReleaseFacts, ReleaseVerdict, decide
from learnloop_service.app.releases.evidence import ReleaseEvidence
from learnloop_service.app.releases.look import look
from learnloop_service.training.statistics.two_arms import Cell

MOST_USERS = 18_000
"""Users of a release of 30 days with 600 users a day."""
STORED_USERS = 2_400
"""The same for a release that goes through the store, where a look takes a hundred times as long."""
MOST_MET, MOST_FALSE, AGAINST_ITSELF = 300, 0.01, 300
_ENDS = (ReleaseVerdict.ROLL_BACK, ReleaseVerdict.PROMOTE)
_FAILS = (Guardrail.ERROR, Guardrail.MALFORMED)


@dataclass
class PureRelease:
    """A release without a database: counts, stage and the candidate's newest failures."""

    rules: ReleaseRules
    salt: bytes
    state: ReleaseState = ReleaseState.RUNNING
    stage: int = 0
    looks: int = 0
    met: int = 0
    met_in_all: int = 0
    cells: dict[str, Counter[Cell]] = field(default_factory=dict)
    failures: Failures = field(default_factory=Failures)

    def observe(self, portion: Iterable[User]) -> list[dict[str, Any]]:
        """Count the users, and return what is recorded of each."""
        return [self._observe(user) for user in portion]

    def _observe(self, user: User) -> dict[str, Any]:
        share = self.rules.ramp[self.stage]
        arm = assignment(self.salt, user.unit, share).arm
        is_candidate = arm is Arm.CANDIDATE
        values = user.candidate if is_candidate else user.stable
        for name, value in values.items():
            self.cells.setdefault(Guardrail(name), Counter())[Cell(share, is_candidate, value)] += 1
        failed = any(values[name] >= 1 for name in _FAILS)
        was = self.failures
        if is_candidate:
            self.met, self.met_in_all = self.met + 1, self.met_in_all + 1
            self.failures = Failures(was.in_a_row + 1, was.stable_units, was.stable_failed) if failed else Failures()
        elif was.in_a_row:
            self.failures = Failures(was.in_a_row, was.stable_units + 1, was.stable_failed + failed)
        return {"stage": self.stage, "unit": user.unit, "arm": arm, "probability": share, "values": dict(values)}

    def look(self) -> tuple[ReleaseVerdict, ReleaseEvidence]:
        """Decide, and follow the decision."""
        self.looks += 1
        facts = ReleaseFacts(self.state, self.stage, self.met, self.cells, self.failures, days=0.0)
        decision = decide(self.rules, facts)
        evidence = ReleaseEvidence.of(self.looks, facts, decision)
        if decision.verdict is ReleaseVerdict.NEXT_STAGE:
            self.stage, self.met = self.stage + 1, 0
        if decision.verdict is ReleaseVerdict.HOLD:
            self.state = ReleaseState.HELD
        return decision.verdict, evidence


@dataclass(frozen=True, slots=True)
class Ended:
    """How a simulated release ended."""

    verdict: ReleaseVerdict
    reason: str | None
    met: int
    """Number of users that met the candidate."""
    stage: int


def simulated(number: int, kind: Kind) -> Ended:
    """Run one release through the pure decision function."""
    release = PureRelease(simulation_rules(), salt(kind, number))
    for portion in users(kind, number, MOST_USERS):
        release.observe(portion)
        verdict, evidence = release.look()
        if verdict in _ENDS:
            alarmed = [str(name) for name, guardrail in evidence.guardrails.items() if guardrail.alarms]
            return Ended(verdict, alarmed[0] if alarmed else "breaker", release.met_in_all, release.stage)
    return Ended(ReleaseVerdict.KEEP, None, release.met_in_all, release.stage)


async def stored(database: Database, kind: Kind, number: int) -> tuple[int, list[str]]:
    """Run one release through the store beside the pure function. Returns the number of looks, and what differs."""
    pure, name = PureRelease(simulation_rules(), salt(kind, number)), f"n{number}-{KINDS_OF_CANDIDATE.index(kind)}"
    release_id = await started(database, name, pure.rules, pure.salt)
    for portion in users(kind, number, STORED_USERS):
        rows = [{"release_id": release_id, **row} for row in pure.observe(portion)]
        async with database.begin() as tx:
            for row in rows:  # one by one, as requests come, so that each has its own time
                await tx.execute(insert(ReleaseObservation).values(row))
        verdict, expected = pure.look()
        await look(database, release_id)
        async with database() as tx:
            release = await tx.get_one(Release, release_id)
        stage = pure.stage if verdict is not ReleaseVerdict.ROLL_BACK else expected.stage
        same = release.evidence == expected.json() and release.stage == stage
        if not same or (release.state == ReleaseState.ROLLED_BACK) != (verdict is ReleaseVerdict.ROLL_BACK):
            return pure.looks, [f"{kind.name} {number}, look {pure.looks}: {release.evidence} is not {expected.json()}"]
        if verdict in _ENDS:
            break
    return pure.looks, []


async def started(database: Database, name: str, rules: ReleaseRules, secret: bytes) -> str:
    """Start a release of checkpoint 2 of `p/m` against 1, and return its id."""
    async with database.begin() as tx:
        stable = Promotion(project="p", name=name, backend="embedded", model_name="m", step=1, actor="local")
        tx.add(stable)
        await tx.flush()
        row = Release(
            id=str(ULID()),
            project="p",
            name=name,
            state=ReleaseState.TRIAL,
            salt=secret,
            unit="user",
            promotion_id=stable.id,
            backend="embedded",
            model_name="m",
            step=2,
            share=rules.ramp[0],
            rules=rules.model_dump(mode="json"),
            baseline={"p95_s": 1.0, "tokens": 100.0, "users": 8_400, "days": 14},
            actor="local",
        )
        tx.add(row)
        await tx.flush()
        await moves.start_traffic(tx, row, "local", None)
    return row.id


async def _all_stored(count: int) -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        async with migrated(Path(directory)) as store:
            looks, differences = 0, list[str]()
            for number in range(count):
                kind = KINDS_OF_CANDIDATE[number % len(KINDS_OF_CANDIDATE)]
                look_count, problems = await stored(store.database, kind, number // len(KINDS_OF_CANDIDATE))
                looks, differences = looks + look_count, differences + problems
            return looks, differences


def _line(kind: Kind, ended: Sequence[Ended]) -> str:
    back = [release for release in ended if release.verdict is ReleaseVerdict.ROLL_BACK]
    reasons = Counter(release.reason for release in back)
    met = sorted(release.met for release in back)
    middle = f"{median(met):.0f} ({quantiles(met, n=20)[-1]:.0f})" if len(met) > 1 else "-"
    last = sum(release.stage == 2 for release in ended) / len(ended)
    why = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "-"
    return f"{kind.name:22} {len(ended):8} {len(back) / len(ended):11.1%} {middle:>20} {last:13.1%}  {why}"


def main() -> None:
    """Print a table; exit with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000, help="releases of each kind (default: 1000)")
    parser.add_argument("--stored", type=int, default=30, help="releases through the store (default: 30)")
    options = parser.parse_args()
    print("candidate              releases  taken back  users met (95th pct.)  at 50% of it  by")
    missed = []
    with ProcessPoolExecutor(2) as pool:
        for kind in KINDS_OF_CANDIDATE:
            ended = list(pool.map(partial(simulated, kind=kind), range(options.count), chunksize=10))
            print(_line(kind, ended), flush=True)
            back = [release.verdict is ReleaseVerdict.ROLL_BACK for release in ended]
            if kind.malformed:
                in_time = sum(is_back and release.met < MOST_MET for is_back, release in zip(back, ended, strict=True))
                if in_time < 0.95 * len(ended):
                    missed.append(
                        f"{in_time} of {len(ended)} harmful candidates were taken back before {MOST_MET} users"
                    )
            elif kind.same and sum(first := back[:AGAINST_ITSELF]) > MOST_FALSE * len(first):
                missed.append(f"{sum(first)} of {len(first)} checkpoints were taken back against themselves")
    if options.stored:
        looks, differences = asyncio.run(_all_stored(options.stored))
        print(f"{options.stored} releases through the store: {looks} looks, {len(differences)} with other evidence")
        missed += differences[:3]
    print("\n".join(missed) or "all bars are met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
