"""Invariants of webhooks under any failure: compares deliveries and attempts in the database with what arrived."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from standardwebhooks import Webhook

from learnloop_service.app.db.tables import WebhookAttempt, WebhookDelivery
from tests.fakes.faulty_receiver import Arrival, FaultyReceiver

RETRY_AFTER_S = 1
_LATE_S = 16
"""Seconds after its start within which an attempt must send its request."""


@dataclass(frozen=True)
class Story:
    """The deliveries and attempts of one endpoint, and what its receiver got."""

    name: str
    secret: str
    receiver: FaultyReceiver
    deliveries: Sequence[WebhookDelivery]
    attempts: Sequence[WebhookAttempt]
    """All attempts of `deliveries`."""


def violations(story: Story, events: set[tuple[str, int]]) -> list[str]:
    """Describe every violation; `events` contains run id and event number of all events."""
    return [f"{story.name}: {wrong}" for wrong in _violations(story, events)]


def _violations(story: Story, events: set[tuple[str, int]]) -> Iterator[str]:
    rows, arrivals = story.deliveries, story.receiver.arrivals
    if {(row.run_id, row.event_seq) for row in rows} != events or len(rows) != len(events):
        yield f"{len(rows)} deliveries for {len(events)} events"
    if undelivered := sum(row.state != "delivered" for row in rows):
        yield f"{undelivered} were not delivered"
    if {arrival.id for arrival in story.receiver.accepted()} != {row.id for row in rows}:
        yield "what the receiver took is not what was to be sent"
    bodies = {row.id: row.body.encode() for row in rows}
    yield from _count("bodies changed", (arrival.raw != bodies.get(arrival.id) for arrival in arrivals))
    yield from _count("signatures are wrong", (not _signed(story.secret, arrival) for arrival in arrivals))
    begun = {(attempt.delivery_id, int(attempt.started_at.timestamp())) for attempt in story.attempts}
    arrival_times = ((received.id, int(received.headers["webhook-timestamp"])) for received in arrivals)
    stale = (all((id, at - late) not in begun for late in range(_LATE_S)) for id, at in arrival_times)
    yield from _count("timestamps are not their attempt's", stale)
    yield from _count("runs out of order", (seqs != sorted(seqs) for seqs in _firsts(arrivals).values()))
    yield from _count("asked again before Retry-After", _too_soon(arrivals))


def _count(what: str, wrong: Iterable[bool]) -> Iterator[str]:
    if count := sum(wrong):
        yield f"{count} {what}"


def _signed(secret: str, arrival: Arrival) -> bool:
    """Check the signature with the reference library's `sign`, as `verify` refuses messages older than 5 minutes."""
    sent_at = datetime.fromtimestamp(int(arrival.headers["webhook-timestamp"]), UTC)
    return Webhook(secret).sign(arrival.id, sent_at, arrival.raw.decode()) == arrival.headers["webhook-signature"]


def _firsts(arrivals: Sequence[Arrival]) -> dict[str, list[int]]:
    """Return the event numbers of each run in order of first arrival."""
    firsts: defaultdict[str, list[int]] = defaultdict(list)
    for body in (arrival.body for arrival in arrivals):
        if body["seq"] not in firsts[body["run_id"]]:
            firsts[body["run_id"]].append(body["seq"])
    return firsts


def _too_soon(arrivals: Sequence[Arrival]) -> Iterator[bool]:
    """Yield, for each message that is repeated after a 429, whether it came before Retry-After."""
    busy: dict[str, float] = {}
    for arrival in arrivals:
        if arrival.id in busy:
            yield arrival.at - busy.pop(arrival.id) < RETRY_AFTER_S
        if arrival.status == 429:
            busy[arrival.id] = arrival.at
