"""Whether the outcome test of a release is right: simulated releases through the real decision, and events through SQL.

    python -m benchmarks.releases.outcomes [--count 200] [--confirmed 1000] [--needed 100] [--stored 3] [--users 2000]

Users report late, by outcome, and while everything drifts (benchmarks/releases/outcome_worlds.py). Of each true
effect `--count` releases with 2,000 units are decided on every day by the service's own decision, with forecasts that
are fitted each day; a few of them are compared with the service's own regression. `--confirmed` releases whose
candidate is 10 points better, for good or at first, show whether the units that were not yet counted confirm a
promotion. `--needed` releases of each of two effects show whether the number of users that a difference needs is
forecast right. `--stored` releases with 300 units go through Postgres as well, with sessions, feedback, windows,
forecasts and the watcher's look at the end of each day by a simulated clock: every look must find the same evidence.
The events of `--users` users are sent in five ways: as they came, in another order, twice, withdrawn before they
came, and with late ones. The outcomes must be equal, byte for byte.

Exits with 1 if more than 2.5% of equal candidates are promoted, if an interval holds at all looks in fewer than 95%,
if confirmations hold in other than 93 to 97%, if a comparison of before and after holds in half of the releases or
more, if the median of users that were needed is more than 25% off, or if evidence or outcomes differ.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf, log, sqrt
from pathlib import Path
from statistics import fmean, median
from time import monotonic

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from benchmarks.durability.harness import migrated
from benchmarks.releases.outcome_events import RULES, WAYS, differences
from benchmarks.releases.outcome_store import StoredRelease, simulate_clock
from benchmarks.releases.outcome_worlds import (
    DAYS,
    WINDOW,
    SimulatedRelease,
    forecasts,
    largest_difference,
    simulated,
)
from learnloop_service.app.domain.release_rules import ReleaseRules
from learnloop_service.app.domain.release_state import ReleaseReason, ReleaseState
from learnloop_service.app.releases.decision import Failures, ReleaseFacts, ReleaseVerdict, decide
from learnloop_service.app.releases.outcome_test import PROMOTED_FROM, REPORTED, SILENT, USUAL, outcomes_of
from learnloop_service.training.statistics.two_arms import (
    Cell,
    Counts,
    EffectEstimate,
    above,
    below,
    effect_estimate,
    users_needed,
)

EFFECTS = (0.0, 0.05, 0.10, -0.05, -0.10)
UNITS = 2_000
MOST_PROMOTED, LEAST_HOLDING, MOST_COMPARED, CONFIRMED, MOST_MISSED = 0.025, 0.95, 0.5, (0.93, 0.97), 0.25
SAME_FORECAST = 1e-9
NEEDED = ((0.10, 4_000), (0.05, 14_000))
"""True effects on success, and numbers of units that are more than enough to show them."""
STORED_EFFECTS, STORED_UNITS = (0.30, 0.0, -0.30), 300
_Z = 1.96
_LEAST_CONFIRMING = 30
_COMPARED_DAYS = (5, 30, 59)
_CELLS = [
    (name, Cell(0.5, candidate, value, forecast / 20))
    for forecast in range(21)
    for value in (0.0, 0.5, 1.0)
    for candidate in (False, True)
    for name in (SILENT, REPORTED)
]
RULES_BY_OUTCOME = ReleaseRules(
    ramp=(0.5,),
    guardrails={},
    outcome={"feedback": {"thumbs_up": 1.0, "none": 0.5, "thumbs_down": 0.0}},
    window_hours=24 * WINDOW,
    max_days=DAYS + WINDOW + 1,
    at_end="return",
    skip_trial=True,
    goal="better",
)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the test said about one release."""

    effect: float
    """The true effect on the mean of what is recorded."""
    end: str
    """`promoted`, `harm`, `no gain` or `open`."""
    holds: bool
    """Whether the last interval contains the true effect."""
    always_holds: bool
    """Whether the interval does at every look."""
    before_after_holds: bool
    """Whether an ordinary interval of the difference between before and after does."""
    t_test_finds: bool
    """Whether a t-test that is repeated every day ever shows a difference."""


def judged(number: int, effect: float) -> Judged:
    """Decide on one release every day."""
    release = simulated(np.random.default_rng((number, round(100 * effect) + 100)), UNITS, effect)
    expected, truth, end, holds = forecasts(release), release.effects[0], "open", list[bool]()
    for day, closed in enumerate(release.looks):
        cells = _cells(release, expected, slice(closed))
        if end == "open":
            facts = ReleaseFacts(ReleaseState.RUNNING, 0, closed, cells, Failures(), float(day + WINDOW))
            decision = decide(RULES_BY_OUTCOME, facts)
            end = _end(decision.verdict, decision.reason)
        counts = outcomes_of(cells)
        holds.append(max(above(counts, truth, USUAL), below(counts, truth, USUAL)) < log(40))
    z = 4 * (release.outcome - expected) * (release.candidate - 0.5)
    count = np.arange(1, UNITS + 1)
    looks = np.array([closed for closed in release.looks if closed > 50]) - 1
    found = (np.abs(z.cumsum()) > _Z * np.sqrt((z**2).cumsum()))[looks].any()
    after = release.outcome[release.candidate]
    error = sqrt(after.var() / len(after) + release.before.var() / len(count))
    compared = abs(after.mean() - release.before.mean() - truth) < _Z * error
    return Judged(truth, end, holds[-1], all(holds), bool(compared), bool(found))


def _end(verdict: ReleaseVerdict, reason: ReleaseReason | None) -> str:
    if verdict is ReleaseVerdict.KEEP:
        return "open"
    if verdict is ReleaseVerdict.PROMOTE:
        return "promoted"
    return {ReleaseReason.HARM: "harm", ReleaseReason.NO_GAIN: "no gain"}.get(reason, str(reason)) if reason else "?"


def _cells(release: SimulatedRelease, expected: np.ndarray, which: slice, second: bool = False) -> dict[str, Counts]:
    outcomes = (release.second if second else release.outcome)[which]
    code = np.rint(expected[which] * 20).astype(int) * 3 + np.rint(outcomes * 2).astype(int)
    code = (code * 2 + release.candidate[which]) * 2 + release.reported[which]
    counts: dict[str, dict[Cell, int]] = {REPORTED: {}, SILENT: {}}
    for index, number in enumerate(np.bincount(code, minlength=len(_CELLS)).tolist()):
        if number:
            name, cell = _CELLS[index]
            counts[name][cell] = number
    return dict(counts)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What the units say that were not yet counted when a candidate was promoted."""

    at_the_decision: float
    """The effect that was seen at the promotion."""
    effects: tuple[float, float]
    """The true effects in the first and in the second window."""
    first: EffectEstimate
    second: EffectEstimate


def confirmed(number: int, effect: float, novelty: float) -> Confirmed | None:
    """Return the confirmation of a release, or None if it was not promoted."""
    release = simulated(np.random.default_rng((number, 1_000)), UNITS, effect, novelty)
    expected = forecasts(release)
    day = _promoted_on(release, expected)
    if day is None:
        return None
    closed, exposed = (int(np.searchsorted(release.day, until, "right")) for until in (day, day + WINDOW))
    first, second = (
        effect_estimate(outcomes_of(_cells(release, expected, slice(closed, exposed), second)), USUAL)
        for second in (False, True)
    )
    seen = effect_estimate(outcomes_of(_cells(release, expected, slice(closed))), USUAL)
    return Confirmed(seen.effect, release.effects, first, second) if first.units >= _LEAST_CONFIRMING else None


def needed(number: int, effect: float, units: int) -> tuple[float, float]:
    """Return how many units one release took to show its effect, infinitely many if it did not, and the forecast."""
    release = simulated(np.random.default_rng((number, 2_000)), units, effect)
    expected = forecasts(release)
    day = _promoted_on(release, expected)
    variance = float(((release.outcome - expected) ** 2).mean())
    return inf if day is None else release.looks[day], users_needed(variance, release.effects[0])


def _promoted_on(release: SimulatedRelease, expected: np.ndarray) -> int | None:
    for day, closed in enumerate(release.looks):
        counts = outcomes_of(_cells(release, expected, slice(closed)))
        if above(counts, 0.0, USUAL) >= PROMOTED_FROM:
            return day
    return None


def _table(pool: ProcessPoolExecutor, count: int) -> Iterable[str]:
    """Print what the test says by true effect, and yield the bars that it misses."""
    print("effect  recorded  promoted   harm  no gain  interval holds (always)  before/after holds  t-test finds")
    for effect in EFFECTS:
        releases = list(pool.map(partial(judged, effect=effect), range(count), chunksize=5))
        promoted, harm, no_gain = (
            _share(release.end == end for release in releases) for end in ("promoted", "harm", "no gain")
        )
        recorded, holds = fmean(release.effect for release in releases), _share(release.holds for release in releases)
        always = _share(release.always_holds for release in releases)
        compared = _share(release.before_after_holds for release in releases)
        found = _share(release.t_test_finds for release in releases)
        print(
            f"{100 * effect:+6.0f}  {100 * recorded:+8.1f}  {promoted:8.1%}  {harm:5.1%}  {no_gain:7.1%}"
            f"  {holds:14.1%} ({always:6.1%})  {compared:18.1%}  {found:12.1%}",
            flush=True,
        )
        if effect == 0 and promoted > MOST_PROMOTED:
            yield f"{promoted:.1%} of equal candidates were promoted"
        if always < LEAST_HOLDING:
            yield f"the interval held at all looks in {always:.1%} of the releases with {100 * effect:+.0f} points"
        if compared >= MOST_COMPARED:
            yield f"a comparison of before and after held in {compared:.1%} with {100 * effect:+.0f} points"


def _confirmations(pool: ProcessPoolExecutor, count: int) -> Iterable[str]:
    """Print whether the units that were not yet counted show the true effects, and yield the bars that are missed."""
    for effect, novelty, called in ((0.10, 0.0, "lasting"), (0.0, 0.10, "of the first window alone")):
        drawn = pool.map(partial(confirmed, effect=effect, novelty=novelty), range(count), chunksize=5)
        releases = [release for release in drawn if release is not None]
        windows = {
            "first": [(release.first, release.effects[0]) for release in releases],
            "second": [(release.second, release.effects[1]) for release in releases],
        }
        seen = fmean(release.at_the_decision for release in releases)
        print(f"+10 points {called}: {len(releases)} of {count} were promoted and had {100 * seen:+.1f} points then")
        for name, pairs in windows.items():
            holds = _share(estimate.low < truth < estimate.high for estimate, truth in pairs)
            mean, truth = fmean(estimate.effect for estimate, _ in pairs), fmean(truth for _, truth in pairs)
            print(f"  {name} window: {100 * mean:+.1f} of {100 * truth:+.1f} points; intervals hold in {holds:.1%}")
            if not CONFIRMED[0] <= holds <= CONFIRMED[1]:
                yield f"the confirmation of +10 points {called} by the {name} window held in {holds:.1%}"


def _users(pool: ProcessPoolExecutor, count: int) -> Iterable[str]:
    """Print how many users a difference took, and yield the forecasts that are missed."""
    for effect, units in NEEDED:
        took = list(pool.map(partial(needed, effect=effect, units=units), range(count)))
        middle, forecast = median(units for units, _ in took), fmean(forecast for _, forecast in took)
        print(f"{100 * effect:+.0f} points took {middle:,.0f} users in the median of {count}; forecast {forecast:,.0f}")
        if not abs(middle / forecast - 1) <= MOST_MISSED:
            yield f"{100 * effect:+.0f} points took {middle:,.0f} users, not {forecast:,.0f}"


async def _in_postgres(releases: int, users: int) -> list[str]:
    """Print how stored releases ended, and return what differs between the store and the simulation."""
    different = list[str]()
    with tempfile.TemporaryDirectory(prefix="learnloop-") as directory:
        async with migrated(Path(directory)) as store:
            if users:
                different += await differences(store.database, users)
                print(
                    f"events of {users:,} users in {len(WAYS)} ways by {len(RULES)} rules: {len(different)} differences"
                )
            await simulate_clock(store)
            for number in range(releases):
                effect = STORED_EFFECTS[number % len(STORED_EFFECTS)]
                end, other = await StoredRelease(store.database, RULES_BY_OUTCOME, number, STORED_UNITS, effect).lived()
                print(f"release of {100 * effect:+.0f} points in Postgres: {end}, {len(other)} differences", flush=True)
                different += other[:3]
    return different


def _share(flags: Iterable[bool]) -> float:
    return fmean(map(float, flags))


def main() -> None:
    """Print the figures; exit with 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="releases of each true effect (default: 200)")
    parser.add_argument("--confirmed", type=int, default=1_000, help="releases to confirm (default: 1000)")
    parser.add_argument("--needed", type=int, default=100, help="releases of each of two effects (default: 100)")
    parser.add_argument("--stored", type=int, default=3, help="releases that go through Postgres (default: 3)")
    parser.add_argument("--users", type=int, default=2_000, help="users whose events go in five ways (default: 2000)")
    options = parser.parse_args()
    missed = []
    off = max(largest_difference(simulated(np.random.default_rng(0), UNITS, 0.1), day) for day in _COMPARED_DAYS)
    print(f"forecasts differ from the service's own by {off:.1e} at most")
    if off > SAME_FORECAST:
        missed.append(f"forecasts differ by {off:.1e}")
    parts: Sequence[tuple[int, Callable[[ProcessPoolExecutor, int], Iterable[str]]]] = (
        (options.count, _table),
        (options.confirmed, _confirmations),
        (options.needed, _users),
    )
    with ProcessPoolExecutor(2) as pool:
        for count, part in parts:
            began = monotonic()
            if count:
                missed += part(pool, count)
                print(f"  ({monotonic() - began:.0f} s)", flush=True)
    if options.stored or options.users:
        missed += asyncio.run(_in_postgres(options.stored, options.users))
    print("\n".join(missed) or "all bars are met")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
