"""Invariants that must hold after chaos: compares rows with an audit table, the workers' history and the trainer."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select, text

from benchmarks.durability.chaos_worker import POISON, ROLLOUTS
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Checkpoint, Event, Iteration, Run
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.run_state import RunStatus

AUDIT = (
    "CREATE TABLE chaos_audit (id bigserial PRIMARY KEY, run_id text, iteration int, name text, epoch int, now int, "
    "at timestamptz DEFAULT clock_timestamp())",
    # The trigger runs in the transaction of the entry, so it records what was committed and under which epoch.
    "CREATE FUNCTION chaos_audit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO chaos_audit (run_id, iteration, name, epoch, now) VALUES "
    "(NEW.run_id, NEW.iteration, NEW.name, NEW.epoch, (SELECT epoch FROM run WHERE id = NEW.run_id)); "
    "RETURN NULL; END $$",
    "CREATE TRIGGER chaos_audit AFTER INSERT ON journal FOR EACH ROW EXECUTE FUNCTION chaos_audit()",
)


@dataclass(frozen=True, slots=True)
class AuditedEntry:
    """A committed journal entry, its epoch, and the epoch that the run had then (`now`)."""

    iteration: int
    name: str
    epoch: int
    now: int
    at: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Story:
    """Everything recorded about one run."""

    run: Run
    iterations: Sequence[int]
    checkpoints: Sequence[int]
    events: Sequence[Event]
    entries: Sequence[AuditedEntry]
    acts: Sequence[dict[str, Any]]
    trained: Sequence[tuple[int, int]]
    """Trained steps, each with the epoch that it was trained under."""


async def audit(database: Database) -> None:
    """Record every journal entry from here on."""
    async with database.begin() as tx:
        for statement in AUDIT:
            await tx.execute(text(statement))


async def stories(database: Database, directory: Path) -> list[Story]:
    """Collect the story of each run."""
    acts = _history(directory / "history")
    async with database() as tx:
        runs = (await tx.execute(select(Run).order_by(Run.id))).scalars().all()
        return [
            Story(
                run,
                list(await tx.scalars(_of(Iteration.iteration, run).order_by(Iteration.iteration))),
                list(await tx.scalars(_of(Checkpoint.step, run).order_by(Checkpoint.step))),
                list(await tx.scalars(select(Event).where(Event.run_id == run.id).order_by(Event.seq))),
                [
                    AuditedEntry(*row)
                    for row in await tx.execute(
                        text(
                            "SELECT iteration, name, epoch, now, extract(epoch FROM at)::float8 FROM chaos_audit "
                            "WHERE run_id = :id ORDER BY id"
                        ),
                        {"id": run.id},
                    )
                ],
                acts[run.model_name],
                sorted(_trained(path) for path in (directory / "steps" / run.model_name).glob("*")),
            )
            for run in runs
        ]


def _trained(path: Path) -> tuple[int, int]:
    return int(path.name), int(str(path.readlink()).removeprefix("epoch-"))


def _of(column: Any, run: Run) -> Any:
    return select(column).where(column.class_.run_id == run.id)


def _history(path: Path) -> defaultdict[str, list[dict[str, Any]]]:
    by_run: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        act = json.loads(line)
        by_run[act["run"]].append(act)
    return by_run


def violations(story: Story) -> list[str]:
    """Describe every broken promise."""
    run = story.run
    checks = (_gave_up,) if run.model_name.startswith(POISON) else (_complete, _done_once)
    return [f"run {run.id}: {wrong}" for check in (*checks, _gapless, _fenced) for wrong in check(story)]


def _gave_up(story: Story) -> Iterator[str]:
    if story.run.status != RunStatus.FAILED or story.iterations:
        yield f"it kills its workers, and is {story.run.status} with iterations {story.iterations}"


def _complete(story: Story) -> Iterator[str]:
    run, total = story.run, story.run.iterations_total
    if run.status != RunStatus.COMPLETED:
        yield f"it is {run.status}: {run.error}"
    if list(story.iterations) != [*range(total + 1)]:
        yield f"its iterations are {story.iterations}"
    if list(story.checkpoints) != [*range(total + 1)]:
        yield f"its checkpoints are {story.checkpoints}"
    if [step for step, _ in story.trained] != [*range(1, total + 1)]:
        yield f"its trainer took the steps {story.trained}"
    completed = [event.iteration for event in story.events if event.type == EventType.ITERATION_COMPLETED]
    if completed != [*range(total + 1)]:
        yield f"its events are about the iterations {completed}"
    ends = [event.type for event in story.events if event.type in _ENDS]
    if ends != [EventType.RUN_COMPLETED]:
        yield f"its ends are {ends}"


def _gapless(story: Story) -> Iterator[str]:
    numbers = [event.seq for event in story.events]
    if numbers != [*range(1, story.run.event_seq + 1)]:
        yield f"its events are numbered {numbers}"


def _fenced(story: Story) -> Iterator[str]:
    """Check that commits carry the newest epoch and that each epoch is claimed once."""
    for entry in story.entries:
        if entry.epoch != entry.now:
            yield f"{entry} was kept under an old epoch"
    epochs = [epoch for _, epoch in story.trained]
    if epochs != sorted(epochs):
        yield f"its trainer took the steps under the epochs {epochs}"
    owner, epoch = "", 0
    for event in story.events:
        if event.type == EventType.RUN_STARTED:
            if event.data["epoch"] != epoch + 1:
                yield f"epoch {event.data['epoch']} came after {epoch}"
            owner, epoch = event.actor, event.data["epoch"]
        elif event.actor.startswith("worker:") and event.actor != owner:
            yield f"event {event.seq} is by {event.actor}, but {owner} had the lease"


def _done_once(story: Story) -> Iterator[str]:
    """Check that kept work is not repeated, and that nothing is done twice under one epoch."""
    epochs_of_entries = {(entry.iteration, entry.name): entry.epoch for entry in story.entries}
    if len(epochs_of_entries) != len(story.entries):
        yield "a journal entry was kept twice"
    if missing := {(k, f"rollout/train/{n}") for k in story.iterations for n in range(ROLLOUTS)} - set(
        epochs_of_entries
    ):
        yield f"never kept: {sorted(missing)}"
    for (iteration, act, epoch), times in _counted(story).items():
        if times > 1:
            yield f"{act} of iteration {iteration} was done {times} times under epoch {epoch}"
        if act.startswith("rollout/") and epoch > epochs_of_entries.get((iteration, act), epoch):
            timeline = _timeline(story, iteration)
            yield f"{act} of iteration {iteration} was kept, and done again under epoch {epoch}: {timeline}"


def _timeline(story: Story, iteration: int) -> str:
    """List what happened around an iteration, in order of time."""
    acts = [
        (a["at"], f"{a['act']} under {a['epoch']} by {a['pid']}") for a in story.acts if a["iteration"] == iteration
    ]
    entries = [(k.at, f"{k.name} kept under {k.epoch}") for k in story.entries if k.iteration == iteration]
    started = [(e.occurred_at.timestamp(), f"{e.type} {e.data.get('epoch', '')} {e.actor}") for e in story.events]
    first, last = min(at for at, _ in acts) - 3, max(at for at, _ in acts) + 3
    return "; ".join(f"{at - first:.3f} {what}" for at, what in sorted(acts + entries + started) if first <= at <= last)


def _counted(story: Story) -> Counter[tuple[int, str, int]]:
    return Counter((act["iteration"], act["act"], act["epoch"]) for act in story.acts)


_ENDS = {EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED}
