"""The finished work of an unfinished iteration, saved as named entries so that a takeover does not repeat it.

Each entry is written once. The entries of an iteration: `rollout/PURPOSE/N` (a finished rollout), `calls/PURPOSE/N/K`
(answered model calls of a rollout, saved before it finishes), `judge/PURPOSE` (the verdicts on all groups),
`judge/PURPOSE/N` (the verdicts on one group, saved earlier if they used a model), `train.intent` (the step from which
training starts) and `train` (the outcome of the training). With the same config, everything else is recomputed from
them with the same results.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from learnloop_service.environment.base import Json, Scenario
from learnloop_service.judges.base import JudgeCall, Judgement, Score
from learnloop_service.training.backends.art_import import import_art
from learnloop_service.training.phases import Phase, Purpose
from learnloop_service.training.types import FailureKind, Rollout, RolloutFailure

if TYPE_CHECKING:
    from art import Trajectory
    from art.trajectories import History


ROLLOUT = "rollout"
"""Kind of the entries for finished rollouts; their names begin with it."""


@dataclass(frozen=True, slots=True)
class EntryName:
    """Name of an entry for a purpose: the N-th rollout, a part of its calls, the verdicts on the N-th group or, without
    a number, on all groups."""

    kind: Literal["rollout", "calls", "judge"]
    purpose: Purpose
    number: int | None = None
    part: int | None = None
    """Index of the part, from 0, for calls. The calls of a part were saved together."""

    def __str__(self) -> str:
        numbers = (number for number in (self.number, self.part) if number is not None)
        return "/".join((self.kind, self.purpose, *map(str, numbers)))

    @classmethod
    def parse(cls, name: str) -> "EntryName | None":
        """Return the parsed name, or None if the entry belongs to the training."""
        kind, *rest = name.split("/")
        if kind not in ("rollout", "calls", "judge"):
            return None
        purpose, *numbers = rest
        return cls(kind, Purpose(purpose), *map(int, numbers))  # type: ignore[arg-type]

    @property
    def phase(self) -> Phase:
        """Phase that the entry's time and usage count toward."""
        return self.purpose.judge_phase if self.kind == "judge" else self.purpose.rollout_phase

    @property
    def rollout(self) -> "EntryName":
        """The rollout to which the calls belong."""
        return EntryName("rollout", self.purpose, self.number)

    def calls(self, part: int) -> "EntryName":
        """Return the name of a part of the rollout's calls."""
        return EntryName("calls", self.purpose, self.number, part)


TRAIN_INTENT = "train.intent"
"""Entry for a train request that is about to be sent. A later request has the suffix `/n`, with n from 1."""
ALL_JUDGED = str(EntryName("judge", Purpose.TRAIN))
"""Entry with the verdicts on the groups that the schedule drew."""
ALL_REPLACED = str(EntryName("judge", Purpose.REPLACEMENT))
"""Entry with the verdicts on replacements, in runs that replace groups."""
TRAINED = "train"
"""Entry that ends the train phase, with the outcome of the training."""
SERVED_USED = "served.used"
"""Entry with the served answers that the train request is made of. It is written before the request is sent."""
SERVED_RATIOS = "served.ratios"
"""Entry with what a step gives to the held-out served answers, by session: what its gain is estimated from."""
_TRAIN_ENTRIES = (TRAINED, TRAIN_INTENT, "train.job", "train.withdrawn", SERVED_USED, SERVED_RATIOS)


@dataclass(frozen=True, slots=True)
class Repair:
    """How to repair an iteration's damaged journal: the entries to drop, and those to put in their place."""

    drop: frozenset[str]
    put: Mapping[str, str]


def repair(whole: Collection[str], damaged: Collection[str]) -> Repair:
    """Return the repair of a journal with these names of whole and damaged entries.

    A damaged entry is dropped and its work is repeated. Dropping a rollout also drops the verdicts on its purpose,
    because they were based on it. Training is the exception: a request that can no longer be read might have been
    accepted, so it is treated like one whose reply was lost.
    """
    drop, replacements = set(damaged), {}
    intents = {name for name in (*whole, *damaged) if name.partition("/")[0] == TRAIN_INTENT}
    for name in damaged:
        entry = _parse_or_none(name)
        if entry is not None and entry.kind == "rollout":
            verdicts = str(EntryName("judge", entry.purpose))
            drop |= {other for other in whole if other == verdicts or other.startswith(f"{verdicts}/")}
        elif name in intents:
            replacements[name] = "{}"
        elif entry is None and name.partition("/")[0] not in _TRAIN_ENTRIES:  # the name itself is damaged
            replacements[f"{TRAIN_INTENT}/{len(intents)}" if intents else TRAIN_INTENT] = "{}"
    return Repair(frozenset(drop), replacements)


def unscored(entries: Mapping[str, str]) -> list[str]:
    """Return the names of the entries of an iteration whose verdicts lack a score, because the judge failed.

    Verdicts that a train request was based on are left out, because it might have been accepted.
    """
    training = any(name.partition("/")[0] == TRAIN_INTENT for name in entries)
    names = []
    for name, value in entries.items():
        entry = _parse_or_none(name)
        if entry is None or entry.kind != "judge" or (training and entry.purpose.is_trained_on):
            continue
        if any(score.value is None for judgement in load_judgements(value) for score in judgement.scores):
            names.append(name)
    return names


def _parse_or_none(name: str) -> EntryName | None:
    try:
        return EntryName.parse(name)
    except ValueError:
        return None


class Journal(Protocol):
    """The entries of one run. Values are JSON text."""

    async def kept(self, iteration: int) -> Mapping[str, str]:
        """Return all entries of an iteration so far, by name."""

    async def keep(self, iteration: int, name: str, value: str) -> None:
        """Write an entry; it is durable when this returns. Raises if the run is no longer ours."""

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        """Write an entry soon, without waiting, and before any later entry."""


@dataclass(frozen=True, slots=True)
class IterationJournal:
    """The journal of one iteration. `kept` has the entries that existed when work on the iteration began."""

    journal: Journal
    iteration: int
    kept: Mapping[str, str]

    @classmethod
    async def open(cls, journal: Journal, iteration: int) -> "IterationJournal":
        """Read the journal's entries of an iteration."""
        return cls(journal, iteration, await journal.kept(iteration))

    async def keep(self, name: str, value: str) -> None:
        """Like Journal.keep."""
        await self.journal.keep(self.iteration, name, value)

    def keep_soon(self, name: str, value: str) -> None:
        """Like Journal.keep_soon."""
        self.journal.keep_soon(self.iteration, name, value)


class HeldJournal:
    """A journal that can hold back the entries that are not waited for: all but those about training.

    It does so while a checkpoint is being written. If that is lost, the step is trained again, which can lead to other
    weights than those that were sampled meanwhile.
    """

    def __init__(self, journal: Journal) -> None:
        self.kept, self.keep, self._journal = journal.kept, journal.keep, journal
        self._held: list[tuple[int, str, str]] | None = None

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        if self._held is None:
            self._journal.keep_soon(iteration, name, value)
        else:
            self._held.append((iteration, name, value))

    def hold(self) -> None:
        """Hold the entries that come."""
        self._held = self._held or []

    def release(self) -> None:
        """Write the entries that were held, and hold no more."""
        entries, self._held = self._held, None
        for entry in entries or ():
            self._journal.keep_soon(*entry)


class NoJournal:
    """Saves nothing, so an interrupted iteration starts over."""

    async def kept(self, iteration: int) -> Mapping[str, str]:
        return {}

    async def keep(self, iteration: int, name: str, value: str) -> None:
        return None

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        return None


def dump_rollout(rollout: Rollout) -> str:
    """Return a finished rollout as JSON, with all that training needs, including token ids and log-probabilities."""
    trajectory = rollout.trajectory
    return json.dumps(
        {
            "id": rollout.id,
            "scenario_id": rollout.scenario.id,
            **_dump_history(trajectory),
            "additional_histories": list(map(_dump_history, trajectory.additional_histories)),
            "metrics": trajectory.metrics,
            "metadata": trajectory.metadata,
            "outcome": rollout.outcome,
            "error": rollout.error,
            "failure": rollout.failure and rollout.failure.kind,
            "started_at": rollout.started_at,
            "seconds": rollout.seconds,
        }
    )


def _dump_history(history: "Trajectory | History") -> dict[str, Json]:
    items = [
        {"message": item} if isinstance(item, dict) else {"choice": item.model_dump(mode="json")}
        for item in history.messages_and_choices
    ]
    return {"items": items, "tools": history.tools}


def load_rollout(scenario: Scenario, text: str) -> Rollout:
    """Return the saved rollout. Raises ValueError if it belongs to another scenario, because the run has changed."""
    value = json.loads(text)
    if value["scenario_id"] != scenario.id:
        raise ValueError(f"the journal has a rollout of scenario {value['scenario_id']!r} in place of {scenario.id!r}")
    return Rollout(
        id=value["id"],
        scenario=scenario,
        trajectory=_trajectory(value),
        outcome=value["outcome"],
        failure=_failure(value),
        started_at=value["started_at"],
        seconds=value["seconds"],
    )


def _failure(value: Mapping[str, Json]) -> RolloutFailure | None:
    if value["error"] is None:
        return None
    # entries of earlier versions have no kind
    return RolloutFailure(FailureKind(value.get("failure") or FailureKind.OTHER), value["error"])


def _trajectory(value: Mapping[str, Json]) -> "Trajectory":
    trajectory: Trajectory = import_art().Trajectory()
    history_type = import_art("art.trajectories").History
    _load_history(trajectory, value)
    for history in value.get("additional_histories", ()):  # missing in entries of earlier versions
        trajectory.additional_histories.append(history_type(messages_and_choices=[]))
        _load_history(trajectory.additional_histories[-1], history)
    trajectory.metrics |= value["metrics"]
    trajectory.metadata |= value["metadata"]
    return trajectory


def _load_history(history: "Trajectory | History", value: Mapping[str, Json]) -> None:
    from openai.types.chat.chat_completion import Choice

    # Bypass the constructor: ART's validation turns the tool calls of plain messages into iterators.
    history.messages_and_choices = [
        item["message"] if "message" in item else Choice.model_validate(item["choice"]) for item in value["items"]
    ]
    history.tools = value["tools"]


def dump_judgements(judgements: list[Judgement]) -> str:
    """Return the verdicts on the groups of a phase, in the order of the groups, as JSON."""
    return json.dumps(list(map(asdict, judgements)))


def load_judgements(text: str) -> list[Judgement]:
    """Return the saved verdicts."""
    return [
        Judgement([Score(**score) for score in judgement["scores"]], [JudgeCall(**call) for call in judgement["calls"]])
        for judgement in json.loads(text)
    ]
