"""What an unfinished iteration has finished: entries by name, each kept once, so that a takeover does nothing twice.

Entries of one iteration: `rollout/WHERE/N` (a finished rollout), `judge/WHERE` (the verdicts on all of them; before it
`judge/WHERE/N`, those on one group, where they cost something), `train.intent` (the step that training starts from) and
`train` (what it led to). With the same config everything else is computed again from them, and comes out the same.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from environment.base import Json, Scenario
from judges.base import JudgeCall, Judgement, Score
from training.backends.art_import import import_art
from training.types import Rollout

if TYPE_CHECKING:
    from art import Trajectory


class Journal(Protocol):
    """The entries of one run. Values are JSON text."""

    async def kept(self, iteration: int) -> Mapping[str, str]:
        """All entries of that iteration so far, by name."""

    async def keep(self, iteration: int, name: str, value: str) -> None:
        """Keep an entry; when this returns it survives us. Raises whatever says that the run is not ours any more."""

    def keep_soon(self, iteration: int, name: str, value: str) -> None:
        """Keep an entry within a moment, and before any entry that is kept later."""


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
    items = [
        {"message": item} if isinstance(item, dict) else {"choice": item.model_dump(mode="json")}
        for item in trajectory.messages_and_choices
    ]
    return json.dumps(
        {
            "id": rollout.id,
            "scenario_id": rollout.scenario.id,
            "items": items,
            "tools": trajectory.tools,
            "metrics": trajectory.metrics,
            "metadata": trajectory.metadata,
            "outcome": rollout.outcome,
            "error": rollout.error,
            "started_at": rollout.started_at,
            "seconds": rollout.seconds,
        }
    )


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
        error=value["error"],
        started_at=value["started_at"],
        seconds=value["seconds"],
    )


def _trajectory(value: Mapping[str, Json]) -> "Trajectory":
    from openai.types.chat.chat_completion import Choice

    art = import_art()
    trajectory: Trajectory = art.Trajectory(
        messages_and_choices=[
            item["message"] if "message" in item else Choice.model_validate(item["choice"]) for item in value["items"]
        ],
        tools=value["tools"],
    )
    trajectory.metrics |= value["metrics"]
    trajectory.metadata |= value["metadata"]
    return trajectory


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
