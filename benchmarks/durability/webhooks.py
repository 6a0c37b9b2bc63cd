"""Deliver webhooks to faulty receivers while dispatchers are killed, and to healthy receivers while others hang.

    python -m benchmarks.durability.webhooks [--events 1500] [--kills 20] [--delayed 15] [--hanging 5]
                                          [--seed 0]

(a) Four receivers drop, reset, hang, redirect, refuse, ask for time, or fail after they read a message, and a fifth
answers 410 after a while. Three dispatcher processes send to them and are killed in turn with SIGKILL. Each event must
reach each of the four receivers: in order per run, with the same bytes and id each time, and a fresh signature
(webhook_checks.py).

(b) 50 endpoints, one dispatcher with the service's settings, and an event every two seconds. Measures the time from an
event's commit to its arrival at the healthy endpoints, first when all are healthy, then when `--hanging` of them never
answer.

The goal is a 95th percentile of 2 s. Exits with 1 if there is a violation or if some kind of fault never happened.
"""

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from benchmarks.durability.harness import add_event, idle_run, migrated, report
from benchmarks.durability.webhook_checks import RETRY_AFTER_S, Story, violations
from benchmarks.durability.webhook_dispatcher import BOX, GUARD
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import WebhookAttempt, WebhookDelivery
from learnloop_service.app.schemas.webhooks import EndpointRequest
from learnloop_service.app.webhooks.endpoints import Endpoints, NewEndpoint
from tests.fakes.faulty_receiver import Fault, FaultyReceiver, faulty_receiver

_DISPATCHERS = 3
_FAULTY = 4
_RUNS = 20
_ENDPOINTS = 50
_CALM_S = 900.0
"""Longest wait for all deliveries once the kills have stopped."""
_LOOK_S = 0.02
_EVERY_S = 2.0
_QUICK = ("--quick", "--timeout=0.5", "--hide=5")
_FAULTS: dict[Fault | str, float] = {
    "drop": 0.1,
    "500 Oops": 0.1,
    "302 Found\r\nLocation: {elsewhere}": 0.03,
    f"429 Too Many\r\nRetry-After: {RETRY_AFTER_S}": 0.03,
    "reset": 0.03,
    "hang": 0.02,
}
"""Probability of each fault. All but `drop` read the message first."""


@dataclass
class Chances:
    """Chooses a receiver's answers at random; `met` counts them."""

    rng: random.Random
    elsewhere: str
    met: Counter[str] = field(default_factory=Counter)

    def answer(self, number: int) -> Fault | str:
        kinds = [*_FAULTS, "200 OK"]
        weights = [*_FAULTS.values(), 1 - sum(_FAULTS.values())]
        [kind] = self.rng.choices(kinds, weights)
        self.met[kind.split()[0]] += 1
        return kind.format(elsewhere=self.elsewhere)


@dataclass
class Dispatchers:
    """A fixed number of dispatcher processes."""

    database_url: str
    log: Path
    flags: Sequence[str]
    alive: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def mend(self, count: int) -> None:
        """Start the missing dispatchers."""
        module = ["-m", "benchmarks.durability.webhook_dispatcher", f"--database={self.database_url}"]
        with self.log.open("ab") as log:
            while len(self.alive) < count:
                self.alive.append(subprocess.Popen([sys.executable, *module, *self.flags], stderr=log))

    def kill(self, which: int) -> None:
        """Kill one with SIGKILL."""
        child = self.alive.pop(which)
        child.kill()
        child.wait()

    def close(self) -> None:
        while self.alive:
            self.kill(0)


@dataclass(frozen=True)
class Stage:
    """The database, the endpoints and the dispatchers' log."""

    database: Database
    endpoints: Endpoints
    database_url: str
    directory: Path

    async def endpoint(self, url: str, project: str) -> NewEndpoint:
        return await self.endpoints.create(EndpointRequest(url=url, project=project), project)

    async def event(self, run_id: str) -> tuple[str, int]:
        """Append an event; return its run id and number."""
        return run_id, await add_event(self.database, run_id)

    async def pending(self) -> int:
        query = select(func.count()).where(WebhookDelivery.state == "pending")
        async with self.database() as tx:
            return (await tx.execute(query)).scalar_one()

    async def story(self, name: str, endpoint: NewEndpoint, receiver: FaultyReceiver) -> Story:
        of_endpoint = WebhookDelivery.endpoint_id == endpoint.row.id
        rows = select(WebhookDelivery).where(of_endpoint)
        tries = select(WebhookAttempt).join(WebhookDelivery, WebhookDelivery.id == WebhookAttempt.delivery_id)
        async with self.database() as tx:
            deliveries = (await tx.execute(rows)).scalars().all()
            attempts = (await tx.execute(tries.where(of_endpoint))).scalars().all()
        return Story(name, endpoint.secret, receiver, deliveries, attempts)

    @asynccontextmanager
    async def dispatchers(self, *flags: str) -> AsyncIterator[Dispatchers]:
        them = Dispatchers(self.database_url, self.directory / "dispatchers.log", flags)
        try:
            yield them
        finally:
            await asyncio.to_thread(them.close)


async def faulty_figures(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of part (a)."""
    rng = random.Random(options.seed)
    async with AsyncExitStack() as stack:
        elsewhere = await stack.enter_async_context(faulty_receiver())
        chances = [Chances(random.Random(f"{options.seed} {n}"), elsewhere.url) for n in range(_FAULTY)]
        receivers = [await stack.enter_async_context(faulty_receiver(behaviour.answer)) for behaviour in chances]
        gone_after = options.events // 4
        gone = await stack.enter_async_context(faulty_receiver(lambda n: "200 OK" if n < gone_after else "410 Gone"))
        endpoints = [await stage.endpoint(target.url, "faulty") for target in (*receivers, gone)]
        dispatchers = await stack.enter_async_context(stage.dispatchers(*_QUICK))
        events = await _append_events_while_killing(stage, dispatchers, [*receivers, gone], options, rng)
        calm_s = await _calm(stage, dispatchers)
        stories = [
            await stage.story(f"receiver {n}", endpoint, receiver)
            for n, (endpoint, receiver) in enumerate(zip(endpoints, [*receivers, gone], strict=True))
        ]
        wrong = [wrong for story in stories[:-1] for wrong in violations(story, events)]
        wrong += [*_gone_wrong(stories[-1], (await stage.endpoints.get(endpoints[-1].row.id)).disabled_reason)]
        wrong += [f"a redirect was followed {elsewhere.requests} times"] if elsewhere.requests else []
    met = sum((behaviour.met for behaviour in chances), Counter[str]())
    wrong += [f"{kind} never happened" for kind in (kind.split()[0] for kind in _FAULTS) if not met[kind]]
    arrivals = [arrival for story in stories[:-1] for arrival in story.receiver.arrivals]
    return {
        "events": len(events),
        "kills": options.kills,
        "deliveries": sum(len(story.deliveries) for story in stories[:-1]),
        "requests": sum(receiver.requests for receiver in receivers),
        "sent_again": len(arrivals) - len({(arrival.id) for arrival in arrivals}),
        "met": dict(met),
        "asked_after_410": gone.requests - gone_after,
        "calm_s": round(calm_s, 1),
        "violations": wrong,
    }


async def _append_events_while_killing(
    stage: Stage,
    dispatchers: Dispatchers,
    receivers: Sequence[FaultyReceiver],
    options: argparse.Namespace,
    rng: random.Random,
) -> set[tuple[str, int]]:
    """Append events while dispatchers are killed at work; return the run id and number of each event."""
    runs = [await idle_run(stage.database, "faulty") for _ in range(_RUNS)]
    events = {(run_id, 1) for run_id in runs}
    for number in range(options.kills):
        dispatchers.mend(_DISPATCHERS)
        for _ in range(options.events // options.kills):
            events.add(await stage.event(rng.choice(runs)))
        enough = _requests(receivers) + rng.randint(5, 50)
        while _requests(receivers) < enough and await stage.pending():
            await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(dispatchers.kill, number % _DISPATCHERS)
    return events


def _requests(receivers: Sequence[FaultyReceiver]) -> int:
    return sum(receiver.requests for receiver in receivers)


async def _calm(stage: Stage, dispatchers: Dispatchers) -> float:
    """Return the seconds until no delivery is pending."""
    dispatchers.mend(_DISPATCHERS)
    started = time.monotonic()
    while await stage.pending() and time.monotonic() - started < _CALM_S:
        await asyncio.sleep(10 * _LOOK_S)
    return time.monotonic() - started


def _gone_wrong(story: Story, disabled_reason: str | None) -> list[str]:
    if "410" not in (disabled_reason or ""):
        return ["the endpoint that answered 410 is not disabled"]
    received = {arrival.id for arrival in story.receiver.accepted()}  # outcomes can be lost with a killed dispatcher
    delivered = {row.id for row in story.deliveries if row.state == "delivered"}
    if wrong := delivered - received:
        return [f"{len(wrong)} deliveries to the endpoint that answered 410 are not as they should be"]
    return []


async def delay_figures(stage: Stage, events: int, hanging: int) -> dict[str, Any]:
    """Return the figures of part (b)."""
    project = f"hanging-{hanging}"
    async with AsyncExitStack() as stack:
        never = await stack.enter_async_context(faulty_receiver(lambda _: "hang"))
        healthy = await stack.enter_async_context(faulty_receiver())
        for number in range(_ENDPOINTS):
            await stage.endpoint(never.url if number < hanging else healthy.url, project)
        (await stack.enter_async_context(stage.dispatchers())).mend(1)
        run_id = await idle_run(stage.database, project)
        expected = _ENDPOINTS - hanging
        await _reached(lambda: len(healthy.arrivals) >= expected)  # wait until the dispatcher is up
        warm, committed = len(healthy.arrivals), {}
        for _ in range(events):
            _, seq = await stage.event(run_id)
            committed[seq] = time.monotonic()
            await asyncio.sleep(_EVERY_S)
        everything = warm + expected * events
        await _reached(lambda: len(healthy.arrivals) >= everything)
        delays = sorted(
            1e3 * max(0.0, arrival.at - committed[arrival.body["seq"]]) for arrival in healthy.arrivals[warm:]
        )
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    missing = everything - len(healthy.arrivals)
    return {
        "endpoints": _ENDPOINTS,
        "hanging": hanging,
        "waiting_for_hanging": never.hanging,
        "events": len(committed),
        "deliveries": len(delays),
        "p50_ms": round(cuts[49], 1),
        "p95_ms": round(cuts[94], 1),
        "max_ms": round(delays[-1], 1),
        "violations": [f"{missing} messages did not reach healthy receivers"] if missing else [],
    }


async def _reached(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _CALM_S
    while not condition() and time.monotonic() < until:
        await asyncio.sleep(_LOOK_S)


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of both parts."""
    async with migrated(directory) as store:
        stage = Stage(store.database, Endpoints(store.database, BOX, GUARD), store.url, directory)
        faulty = await faulty_figures(stage, options)
        delays = [await delay_figures(stage, options.delayed, hanging) for hanging in (0, options.hanging)]
    wrong = [wrong for part in (faulty, *delays) for wrong in part.pop("violations")]
    return {"seed": options.seed, "faulty": faulty, "delays": delays, "violations": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1500)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--hanging", type=int, default=5, help=f"of {_ENDPOINTS} endpoints")
    parser.add_argument("--delayed", type=int, default=15, help="events whose delay is measured")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report(lambda directory: measure(directory, options))


if __name__ == "__main__":
    main()
