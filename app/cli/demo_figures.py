"""What a demo found, as the JSON document of `learnloop demo --json`. Every figure comes from the service's API."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.cli.client import Service
from app.cli.held_out import held_out_figures
from app.cli.run_report import run_seconds

Json = Any
_TASK_FIELDS = ("question", "inbox_address", "query_date")


def held_out_scenarios(service: Service, run_id: str, count: int) -> list[Json]:
    """The first `count` test scenarios on which the run examined its base, as `{id, task, reference}`.

    Scenarios without a question are left out: there is nothing to ask.
    """
    found: dict[str, Json] = {}
    for row in service.trajectories(run_id, iteration=0, split="test", mode="greedy"):
        scenario = row["scenario"]
        if scenario["task"].get("question"):
            found.setdefault(row["scenario_id"], {"id": row["scenario_id"], **scenario})
        if len(found) == count:
            break
    return list(found.values())


def ask_both(service: Service, run: Json, scenario: Json) -> Json:
    """One scenario's question to the base and to the trained agent, with their answers marked."""
    task = {field: scenario["task"][field] for field in _TASK_FIELDS if scenario["task"].get(field)}
    environment = run["request"]["environment"]
    base = service.ask({"model": run["model"]["base_model"], "environment": environment, **task})
    trained = service.ask({"run_id": run["run_id"], **task})
    reference = scenario["reference"]
    return {
        "scenario_id": scenario["id"],
        **task,
        "expected": reference,
        "base": _marked(base, reference),
        "trained": _marked(trained, reference),
    }


def demo_document(run: Json, answers: Sequence[Json], total_s: float) -> Json:
    """The whole demo as one document. `total_s` is the wall time of everything, the service's start included."""
    seconds = run_seconds(run) or 0.0
    return {
        "run_id": run["run_id"],
        "environment": run["environment"],
        "judge": run["judge"],
        "model": run["model"],
        "seed": run["request"]["seed"],
        "best_step": run["best_checkpoint"]["step"] if run["best_checkpoint"] else None,
        **held_out_figures(run["evaluations"], "test"),
        "iterations": run["progress"]["iterations_done"],
        "rollouts": run["rollouts"],
        "sampled_tokens": run["tokens"]["completion"],
        "seconds": round(seconds, 2),
        "total_seconds": round(total_s, 2),
        "rollouts_per_s": round(run["rollouts"] / seconds, 2) if seconds else None,
        "tokens_per_s": round(run["tokens"]["completion"] / seconds, 1) if seconds else None,
        "answers": list(answers),
    }


def _marked(reply: Json, reference: Mapping[str, Json]) -> Json:
    """An answer with `correct`: the reference's answer and exactly its sources; None without a reference."""
    from judges.reference import same_answer

    correct: bool | None = None
    if isinstance(reference.get("answer"), str):
        correct = (
            bool(reply["answer"])
            and same_answer(reply["answer"], reference["answer"])
            and set(reply["source_ids"]) == set(reference.get("source_ids", ()))
        )
    return {
        "answer": reply["answer"],
        "source_ids": reply["source_ids"],
        "correct": correct,
        "trajectory_id": reply["trajectory_id"],
        "step": reply["step"],
    }
