"""The same events of the same users, sent to one release after another in different ways: outcomes in Postgres."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy import insert, select, text
from ulid import ULID

from benchmarks.releases.simulated_users import simulation_rules
from benchmarks.releases.simulation import started
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Feedback, Release, ReleaseUnit
from learnloop_service.app.domain.release_state import Arm
from learnloop_service.app.releases.outcomes import close_windows

RULES: Sequence[Mapping[str, Any]] = (
    {"feedback": {"thumbs_up": 1.0, "none": 0.5, "thumbs_down": 0.0}},
    {"value": "resolved"},
)
_WINDOW = 168 * 60
"""Minutes of a window."""
_EXPOSED = datetime.now(UTC) - timedelta(days=20)
_BATCH = 2_000


@dataclass(frozen=True, slots=True)
class Sent:
    """An event of a user. Times are minutes after the user's exposure."""

    user: int
    id: str
    type: str
    occurred: int
    received: int
    value: float | None = None
    withdraws: str | None = None


def _story(users: int) -> list[Sent]:
    """What comes of each user: opinions and values, a third of them withdrawn later, or nothing."""
    random, story = Random(11), list[Sent]()
    for user in range(users):
        for number in range(random.randrange(4)):
            at, id = random.randrange(1, _WINDOW - 100), f"{user}.{number}"
            type = random.choice(("thumbs_up", "thumbs_down", "outcome"))
            value = random.choice((0.0, 0.25, 1.0)) if type == "outcome" else None
            story.append(Sent(user, id, type, at, at + 1, value))
            if random.random() < 0.3:
                story.append(Sent(user, f"not {id}", "withdrawn", at + 9, at + 10, withdraws=id))
    return story


def _shuffled(story: Sequence[Sent]) -> list[Sent]:
    random = Random(12)
    return random.sample([replace(event, received=random.randrange(1, _WINDOW)) for event in story], len(story))


def _doubled(story: Sequence[Sent]) -> list[Sent]:
    return [*story, *(replace(event, id=f"again {event.id}", received=event.received + 5) for event in story)]


def _withdrawn_early(story: Sequence[Sent]) -> list[Sent]:
    return [replace(event, received=1 if event.withdraws else event.received) for event in story]


def _late(story: Sequence[Sent]) -> list[Sent]:
    """After the windows everybody is content, and all that was said before is withdrawn."""
    at = (_WINDOW + 1, _WINDOW + 2)
    late = [Sent(event.user, f"late {event.id}", "thumbs_up", *at) for event in story]
    values = [Sent(event.user, f"value {event.id}", "outcome", *at, value=1.0) for event in story]
    withdrawn = [event for event in story if event.withdraws is None]
    gone = [Sent(event.user, f"gone {event.id}", "withdrawn", *at, withdraws=event.id) for event in withdrawn]
    return [*story, *late, *values, *gone]


WAYS: Mapping[str, Callable[[Sequence[Sent]], Sequence[Sent]]] = {
    "as they came": list,
    "shuffled": _shuffled,
    "doubled": _doubled,
    "withdrawn early": _withdrawn_early,
    "with late ones": _late,
}


async def differences(database: Database, users: int) -> list[str]:
    """Return which ways of sending the events change an outcome, by rule."""
    story, different = _story(users), list[str]()
    for number, rule in enumerate(RULES):
        outcomes = [
            await _outcomes(database, f"r{number}w{way_number}", rule, way(story), users)
            for way_number, way in enumerate(WAYS.values())
        ]
        if len(set(struct.unpack(f"{users}d", outcomes[0]))) < 3:
            different.append(f"The rule {rule} tells no users apart.")
        names = [way for way, frozen in zip(WAYS, outcomes, strict=True) if frozen != outcomes[0]]
        different += [f"By the rule {rule} events {way} give other outcomes." for way in names]
    return different


async def _outcomes(
    database: Database, name: str, rule: Mapping[str, Any], events: Sequence[Sent], users: int
) -> bytes:
    """Send the events to the users of a new release, close their windows, and return the bytes of the outcomes."""
    rules = simulation_rules().model_copy(update={"outcome": dict(rule)})
    release_id = await started(database, name, rules, bytes(16))
    unit = {"release_id": release_id, "probability": 0.5, "stage": 0, "exposed_at": _EXPOSED}
    exposed = [{**unit, "unit": f"{user:06}", "arm": list(Arm)[user % 2]} for user in range(users)]
    async with database.begin() as tx:
        for start in range(0, users, _BATCH):
            await tx.execute(insert(ReleaseUnit), exposed[start : start + _BATCH])
        for start in range(0, len(events), _BATCH):
            await tx.execute(insert(Feedback), [_row(name, event) for event in events[start : start + _BATCH]])
        await tx.execute(text("ANALYZE feedback, release_unit"))  # as autovacuum does in time
    async with database.begin() as tx:
        await close_windows(tx, await tx.get_one(Release, release_id))
    query = select(ReleaseUnit.outcome).where(ReleaseUnit.release_id == release_id).order_by(ReleaseUnit.unit)
    async with database() as tx:
        return struct.pack(f"{users}d", *(await tx.execute(query)).scalars())


def _row(name: str, event: Sent) -> dict[str, Any]:
    return {
        "id": str(ULID()),
        "project": "p",
        "event_id": f"{name} {event.id}",
        "user_hash": f"{event.user:06}",
        "asked_as": f"p/{name}",
        "type": event.type,
        "confidence": 1.0,
        "source": "api",
        "outcome_name": None if event.value is None else "resolved",
        "value": event.value,
        "withdraws": event.withdraws and f"{name} {event.withdraws}",
        "occurred_at": _EXPOSED + timedelta(minutes=event.occurred),
        "received_at": _EXPOSED + timedelta(minutes=event.received),
    }
