"""The rollouts in a report: which ones are listed, their hashes, and the figures that are recomputed from them.

A report has at most `MAX_LISTED` rollouts, so that it stays small. Every rollout of the run is covered by a digest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any, NamedTuple, cast

from learnloop_service.app.db.json_text import canonical
from learnloop_service.app.schemas.trajectories import TrajectoryOut
from learnloop_service.app.statistics.verdict import headline
from learnloop_service.environment.base import Scenario
from learnloop_service.environment.json_type import Json
from learnloop_service.judges.base import Score
from learnloop_service.training.types import FailureKind, Rollout, RolloutFailure, ScoredRollout

MAX_LISTED = 2_000
"""Maximum number of listed rollouts: about 250 kB."""
MAX_DIGESTS = 500
HASHED = (
    "id", "run_id", "kind", "iteration", "split", "mode", "model", "step", "scenario_id", "scenario", "outcome",
    "score", "reward", "advantage", "success", "error", "failure", "turns", "prompt_tokens", "completion_tokens",
    "seconds", "started_at", "messages", "tools", "additional_histories", "score_explanation", "score_parts",
    "reward_parts",
)  # fmt: skip
"""Fields of `GET /trajectories/{trajectory_id}` that the hash of a rollout covers. Fields that later versions add are
not among them, so that old reports can still be verified."""
FAILED = "failed"
"""The `end` of a rollout that failed. For the others it is the outcome's `finish`."""


class Row(NamedTuple):
    """A listed rollout, in the order of its columns in the report."""

    id: str
    scenario: int
    """Index into the report's scenarios."""
    score: float | None
    reward: float | None
    success: bool | None
    end: str
    turns: int
    sha256: str
    inclusion: float = 1.0


class RolloutBatch(NamedTuple):
    """Rollouts that were made together: the training rollouts of an iteration, or a held-out evaluation."""

    iteration: int
    kind: str
    split: str
    mode: str
    step: int | None

    @property
    def is_training(self) -> bool:
        return self.kind == "train"


def rollout_hash(row: Any) -> str:
    """Return the SHA-256, in hex, of the canonical JSON of a stored trajectory: keys sorted, no spaces, UTF-8."""
    document = TrajectoryOut.of(row).model_dump(mode="json", include=set(HASHED))
    return sha256(canonical(document).encode()).hexdigest()


def digest(hashes: Iterable[str]) -> str:
    """Return the SHA-256 of hashes in ascending order, each followed by a newline."""
    whole = sha256()
    for hash in sorted(hashes):
        whole.update(f"{hash}\n".encode())
    return whole.hexdigest()


@dataclass(frozen=True, slots=True)
class Listing:
    """The batches whose rollouts are listed: those chosen, and all of every `every`-th iteration."""

    batches: frozenset[RolloutBatch]
    every: int


def listing(sizes: Mapping[RolloutBatch, int], first_choice: Sequence[RolloutBatch]) -> Listing:
    """Choose the batches to list. `first_choice` are listed before others, as far as they fit."""
    chosen: set[RolloutBatch] = set()
    room = MAX_LISTED
    for batch in first_choice:
        if batch in sizes and batch not in chosen and sizes[batch] <= room:
            chosen.add(batch)
            room -= sizes[batch]
    others = sizes.keys() - chosen
    for every in steps():
        some = {batch for batch in others if batch.iteration % every == 0}
        if sum(sizes[batch] for batch in some) <= room:
            return Listing(frozenset(chosen | some), every)
    raise AssertionError("steps() is endless")


def steps() -> Iterable[int]:
    """Yield 1, 2, 5, 10, 20, 50 and so on."""
    return (factor * 10**zeros for zeros in count() for factor in (1, 2, 5))


def thinned(numbers: Sequence[int], most: int) -> int:
    """Return the smallest step of which the numbers have at most `most` multiples."""
    return next(step for step in steps() if sum(number % step == 0 for number in numbers) <= most)


def listed_row(row: Any, scenario: int, hash: str) -> Row:
    """Return a stored trajectory as a row of the report."""
    end = FAILED if row.error is not None else str(row.outcome.get("finish", ""))
    return Row(row.id, scenario, row.score, row.reward, row.success, end[:40], row.turns, hash, row.inclusion or 1.0)


def batches_of(report: Json) -> dict[RolloutBatch, list[Row]]:
    """Return the listed rollouts of a report."""
    return {
        RolloutBatch(*(batch[name] for name in RolloutBatch._fields)): [Row(*row) for row in batch["rows"]]
        for batch in report["rollouts"]["batches"]
    }


def compared(report: Json) -> tuple[list[Row], list[Row]] | None:
    """Return the rollouts of the first and of the latest headline evaluation; None if the report does not list both."""
    heads = headline(report["evaluations"]["items"])
    if len(heads) < 2:
        return None
    batches = batches_of(report)
    before, after = (batches.get(evaluated(row), []) for row in (heads[0], heads[-1]))
    return (before, after) if before and after else None


def evaluated(row: Json) -> RolloutBatch:
    """Return the batch of the rollouts of a held-out evaluation."""
    return RolloutBatch(row["iteration"], "evaluation", row["split"], row["mode"], row["step"])


def scored(rows: Sequence[Row], scenarios: Sequence[str]) -> list[ScoredRollout]:
    """Return rollouts as the functions of training/scoring.py take them."""
    return [_scored(row, scenarios[row.scenario]) for row in rows]


def _scored(row: Row, scenario_id: str) -> ScoredRollout:
    failure = RolloutFailure(FailureKind.OTHER, FAILED) if row.end == FAILED else None
    scenario = Scenario(scenario_id, "validation", {}, {})
    rollout = Rollout(row.id, scenario, cast(Any, None), {"finish": row.end}, failure)
    return ScoredRollout(rollout, Score(None, ""), row.reward, {}, bool(row.success), inclusion=row.inclusion)
