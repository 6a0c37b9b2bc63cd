"""The environment `verifiers`: its scenarios are the rows of an environment of that package, its rewards the rubric's.

Its rollouts are made by `VerifiersAgent`, which runs that environment's loop. It needs the extra `verifiers`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import (
    REPORTED_REWARD,
    Ending,
    Json,
    Outcome,
    Scenario,
    Split,
    Tool,
    ToolError,
    ToolResult,
)
from learnloop_service.environment.explained import ending, too_low
from learnloop_service.environment.scenario_order import draw, splits_of
from learnloop_service.training.gyms.verifiers_loading import NAME, Gym
from learnloop_service.training.gyms.verifiers_report import GymReport

_DEFAULT_MAX_TURNS = 50
"""Limit for environments of verifiers that have none."""
_FROM_DATASET, _FROM_EVAL_DATASET = "dataset", "eval_dataset"


class VerifiersEnvironment:
    """Scenarios and rewards of an environment of the package `verifiers`."""

    name = NAME
    default_max_turns = _DEFAULT_MAX_TURNS
    default_judge = "reported"
    rubric = "The rollout that does more of the task is better."

    def __init__(self, gym: Gym) -> None:
        self._gym = gym
        self._loaded: Any = None
        self._pools: Mapping[Split, Sequence[Scenario]] = {}

    def admit(self, access: Access) -> None:
        """Load the environment. Raises ValueError if the operator does not allow its module, or if it cannot be
        loaded."""
        access.check_module(self._gym.module)
        self._loaded = self._gym.load()
        self._pools = _pools(self._loaded)

    def scenarios(self, split: Split, count: int, seed: int, start: int = 0) -> list[Scenario]:
        """Draw scenarios. Train scenarios are rows of the training set, held-out ones of the evaluation set. Without an
        evaluation set, each held-out split is a fifth of the training set's rows."""
        if not self._pools:
            raise ValueError(f"{self._gym.module} was not loaded")
        return [self._with_prompt(scenario) for scenario in draw(self._pools[split], count, seed, start)]

    def ask(self, task: Mapping[str, Json]) -> Scenario:
        """Raise ValueError, because the environment has only its own tasks."""
        raise ValueError("an environment of verifiers has its own tasks, and answers no others")

    def episode(self, scenario: Scenario, max_turns: int | None = None) -> "VerifiersEpisode":
        return VerifiersEpisode(scenario, max_turns or self.default_max_turns)

    def reward(self, outcome: Outcome, score: float) -> dict[str, float]:
        """Return the rubric's scores by function if they add up to the reward, otherwise the reward alone."""
        return dict(outcome["parts"])

    def success(self, outcome: Outcome, score: float) -> bool:
        reward = outcome[REPORTED_REWARD]
        return reward is not None and bool(reward >= self._gym.success_from)

    def why_no_success(self, scenario: Scenario, outcome: Outcome, score: float | None) -> str | None:
        low = too_low("reward", outcome[REPORTED_REWARD], self._gym.success_from)
        return low if outcome["finish"] == "reported" else ending(outcome)

    def answer(self, outcome: Outcome) -> dict[str, Json]:
        reported = outcome["finish"] == "reported"
        return {"answer": outcome["answer"], "source_ids": [], "success": reported}

    def close(self) -> None:
        """Do nothing: the environment stays loaded for the next run."""

    def _with_prompt(self, scenario: Scenario) -> Scenario:
        row = row_of(self._loaded, scenario.task)
        return Scenario(scenario.id, scenario.split, {**scenario.task, "prompt": row["prompt"]})


class VerifiersEpisode:
    """One attempt at a scenario, whose result is the rubric's reported verdict."""

    tools: Sequence[Tool] = ()

    def __init__(self, scenario: Scenario, max_turns: int) -> None:
        self.scenario = scenario
        self.max_turns = max_turns
        self._finish, self._detail = "unfinished", ""
        self._reported = GymReport()

    def messages(self) -> list[dict[str, Json]]:
        return [dict(message) for message in self.scenario.task["prompt"]]

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        raise ToolError(f"there is no tool {name!r} here: the environment has its own")

    def end(self, reason: Ending, detail: str) -> None:
        self._finish, self._detail = reason, detail

    def report(self, text: str) -> None:
        """Record a report. Raises ValueError for a reward that is not a finite number."""
        self._reported, self._finish = GymReport.parse(text), "reported"

    def outcome(self) -> Outcome:
        """Return `finish` and `detail`; the rubric's reward, its `parts` and all `metrics`; the last `answer`; and
        `stop_condition`, the environment's reason to end the rollout."""
        reported = self._reported
        return {
            "finish": self._finish,
            "detail": self._detail,
            REPORTED_REWARD: reported.reward,
            "parts": dict(reported.parts),
            "metrics": dict(reported.metrics),
            "answer": reported.answer,
            "stop_condition": reported.stop_condition,
        }


def row_of(loaded: Any, task: Mapping[str, Json]) -> dict[str, Any]:
    """Return the dataset row of a scenario's task."""
    found = loaded.get_dataset() if task["from"] == _FROM_DATASET else loaded.get_eval_dataset()
    return dict(found[task["row"]])


def _pools(loaded: Any) -> dict[Split, Sequence[Scenario]]:
    """Return the scenarios of each split, without prompts. Raises ValueError if there are too few."""
    loaded.build_eval_dataset()
    rows = len(loaded.get_dataset())
    if loaded.eval_dataset is None:
        if rows < 3:
            raise ValueError("the environment has fewer than three rows")
        splits = splits_of(rows, "verifiers:split")
        return {
            split: _rows(_FROM_DATASET, split, [row for row in range(rows) if splits[row] == split])
            for split in set(splits)
        }
    held_out = range(len(loaded.get_eval_dataset()))
    if not rows or len(held_out) < 2:
        raise ValueError("the environment has no row for training, or fewer than two for evaluation")
    return {
        "train": _rows(_FROM_DATASET, "train", range(rows)),
        "validation": _rows(_FROM_EVAL_DATASET, "validation", held_out[::2]),
        "test": _rows(_FROM_EVAL_DATASET, "test", held_out[1::2]),
    }


def _rows(source: str, split: Split, rows: Sequence[int]) -> list[Scenario]:
    return [Scenario(f"{source}.{row}", split, {"from": source, "row": row}) for row in rows]


def build(config: Mapping[str, Json], data_dir: Path) -> VerifiersEnvironment:
    """Build the environment. Raises ValueError for a bad config."""
    return VerifiersEnvironment(Gym(config))
