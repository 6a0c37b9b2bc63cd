"""What an unfinished iteration has finished: entries by name, each kept once, so that a takeover repeats no work.

Entries of one iteration: `rollout/PURPOSE/N` (a finished rollout), before it `calls/PURPOSE/N/K` (calls of its model
that were answered), `judge/PURPOSE` (the verdicts on all groups; before it `judge/PURPOSE/N`, those on one group, where
they cost something), `train.intent` (the step that training starts from) and `train` (what it led to). With the same
config everything else is computed again from them, and comes out the same.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from environment.base import Json, Scenario
from judges.base import JudgeCall, Judgement, Score
from training.backends.art_import import import_art
from training.phases import Phase, Purpose
from training.types import Failure, FailureKind, Rollout

if TYPE_CHECKING:
    from art import Trajectory
    from art.trajectories import History


@dataclass(frozen=True, slots=True)
class EntryName:
    """What was made for a purpose: the N-th rollout, a part of its calls, the verdicts on the N-th group or, without a
    number, on all."""

    kind: Literal["rollout", "calls", "judge"]
    purpose: Purpose
    number: int | None = None
    part: int | None = None
    """Of calls: which were kept together, from 0."""

    def __str__(self) -> str:
        numbers = (number for number in (self.number, self.part) if number is not None)
        return "/".join((self.kind, self.purpose, *map(str, numbers)))

    @classmethod
    def parse(cls, name: str) -> "EntryName | None":
        """The parts of a name; None for an entry of the training."""
        kind, *rest = name.split("/")
        if kind not in ("rollout", "calls", "judge"):
            return None
        purpose, *numbers = rest
        return cls(kind, Purpose(purpose), *map(int, numbers))  # type: ignore[arg-type]

    @property
    def phase(self) -> Phase:
        """The phase whose time and usage it counts as."""
        return self.purpose.judge_phase if self.kind == "judge" else self.purpose.rollout_phase

    @property
    def rollout(self) -> "EntryName":
        """The rollout that calls belong to."""
        return EntryName("rollout", self.purpose, self.number)

    def calls(self, part: int) -> "EntryName":
        """That part of a rollout's calls."""
        return EntryName("calls", self.purpose, self.number, part)


TRAIN_INTENT = "train.intent"
"""The entry of a train request that is about to be sent; of the n-th further one, with `/n` behind it."""
ALL_JUDGED = str(EntryName("judge", Purpose.TRAIN))
"""The entry that ends the phases rollout and judge."""
TRAINED = "train"
"""The entry that ends the phase train: what the training led to."""
_OF_REQUESTS = (TRAINED, TRAIN_INTENT, "train.job", "train.withdrawn")


@dataclass(frozen=True, slots=True)
class Repair:
    """What becomes of an iteration's entries if some are damaged: which ones go, and which are put in their place."""

    drop: frozenset[str]
    put: Mapping[str, str]


def repair(whole: Collection[str], damaged: Collection[str]) -> Repair:
    """The repair of a journal with the entries of these names.

    A damaged entry goes, and its work is done again. With a rollout go the verdicts on its purpose, which were given on
    what it was. Only the training is never done again for it: a request for it that cannot be read any more may have
    come through, and is treated like one whose reply was lost.
    """
    drop, put = set(damaged), {}
    intents = {name for name in (*whole, *damaged) if name.partition("/")[0] == TRAIN_INTENT}
    for name in damaged:
        entry = _parsed(name)
        if entry is not None and entry.kind == "rollout":
            verdicts = str(EntryName("judge", entry.purpose))
            drop |= {each for each in whole if each == verdicts or each.startswith(f"{verdicts}/")}
        elif name in intents:
            put[name] = "{}"
        elif entry is None and name.partition("/")[0] not in _OF_REQUESTS:  # the name is damaged itself
            put[f"{TRAIN_INTENT}/{len(intents)}" if intents else TRAIN_INTENT] = "{}"
    return Repair(frozenset(drop), put)


def _parsed(name: str) -> EntryName | None:
    try:
        return EntryName.parse(name)
    except ValueError:
        return None


class Journal(Protocol):
    """The entries of one run. Values are JSON text."""

    async def kept(self, iteration: int) -> Mapping[str, str]:
        """All entries of that iteration so far, by name."""

    async def keep(self, iteration: int, name: str, value: str) -> None:
        """Keep an entry; when this returns it is durable. Raises if the run is no longer ours, whatever says so."""

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        """Keep an entry within a moment, without waiting, and before any entry that is kept later."""


@dataclass(frozen=True, slots=True)
class IterationJournal:
    """The journal of one iteration; `kept` are the entries it had when work on the iteration began."""

    journal: Journal
    iteration: int
    kept: Mapping[str, str]

    @classmethod
    async def open(cls, journal: Journal, iteration: int) -> "IterationJournal":
        """Read what the journal has of that iteration."""
        return cls(journal, iteration, await journal.kept(iteration))

    async def keep(self, name: str, value: str) -> None:
        """As Journal.keep."""
        await self.journal.keep(self.iteration, name, value)

    def keep_soon(self, name: str, value: str) -> None:
        """As Journal.keep_soon."""
        self.journal.keep_soon(self.iteration, name, value)


class NoJournal:
    """Keeps nothing: an interrupted iteration begins again."""

    async def kept(self, iteration: int) -> Mapping[str, str]:
        return {}

    async def keep(self, iteration: int, name: str, value: str) -> None:
        return None

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        return None


def dump_rollout(rollout: Rollout) -> str:
    """A finished rollout with all that training needs of it, token ids and log-probabilities included."""
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
    """The rollout again. Raises ValueError if it was made for another scenario: the run is not what it was."""
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


def _failure(value: Mapping[str, Json]) -> Failure | None:
    if value["error"] is None:
        return None
    # Entries of earlier versions have no kind.
    return Failure(FailureKind(value.get("failure") or FailureKind.OTHER), value["error"])


def _trajectory(value: Mapping[str, Json]) -> "Trajectory":
    trajectory: Trajectory = import_art().Trajectory()
    history_type = import_art("art.trajectories").History
    _load_history(trajectory, value)
    for history in value.get("additional_histories", ()):  # entries of earlier versions have none
        trajectory.additional_histories.append(history_type(messages_and_choices=[]))
        _load_history(trajectory.additional_histories[-1], history)
    trajectory.metrics |= value["metrics"]
    trajectory.metadata |= value["metadata"]
    return trajectory


def _load_history(history: "Trajectory | History", value: Mapping[str, Json]) -> None:
    from openai.types.chat.chat_completion import Choice

    # Not by the constructor: ART's validation turns the tool calls of plain messages into iterators.
    history.messages_and_choices = [
        item["message"] if "message" in item else Choice.model_validate(item["choice"]) for item in value["items"]
    ]
    history.tools = value["tools"]


def dump_judgements(judgements: list[Judgement]) -> str:
    """The verdicts on the groups of a phase, in their order."""
    return json.dumps(
        [
            {"scores": [asdict(score) for score in each.scores], "calls": [asdict(call) for call in each.calls]}
            for each in judgements
        ]
    )


def load_judgements(text: str) -> list[Judgement]:
    """The verdicts again."""
    return [
        Judgement([Score(**score) for score in each["scores"]], [JudgeCall(**call) for call in each["calls"]])
        for each in json.loads(text)
    ]
