"""Gives held-out tasks to the base model and to the trained agent, through POST /ask."""

from collections.abc import Iterable
from dataclasses import dataclass

from learnloop_service.app.cli.client import Service
from learnloop_service.environment.json_type import Json

COUNT = 3
"""Number of tasks shown."""


@dataclass(frozen=True, slots=True)
class AnsweredScenario:
    """A scenario as `{id, task, reference}`, the fields of its task that were sent, and both replies."""

    scenario: Json
    task: dict[str, Json]
    base: Json
    trained: Json


def ask_both(service: Service, run: Json, fields: Iterable[str]) -> list[AnsweredScenario]:
    """Ask both models the first test scenarios of the baseline evaluation.

    `fields` are the fields of a task that /ask accepts. The first one is required: scenarios without it are skipped.
    """
    first, *_ = fields = tuple(fields)
    return [_answered(service, run, scenario, fields) for scenario in _held_out(service, run["run_id"], first)]


def _held_out(service: Service, run_id: str, field: str) -> list[Json]:
    scenarios: dict[str, Json] = {}
    for row in service.trajectories(run_id, iteration=0, split="test", mode="greedy"):
        scenario = row["scenario"]
        if scenario["task"].get(field):
            scenarios.setdefault(row["scenario_id"], {"id": row["scenario_id"], **scenario})
        if len(scenarios) == COUNT:
            break
    return list(scenarios.values())


def _answered(service: Service, run: Json, scenario: Json, fields: Iterable[str]) -> AnsweredScenario:
    task = {field: scenario["task"][field] for field in fields if scenario["task"].get(field)}
    environment = run["request"]["environment"]
    base = service.ask({"model": run["model"]["base_model"], "environment": environment, **task})
    return AnsweredScenario(scenario, task, base, service.ask({"run_id": run["run_id"], **task}))
