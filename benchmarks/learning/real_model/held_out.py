"""Evaluates models on test questions through `POST /evaluations`."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from statistics import fmean

from benchmarks.learning.real_model.arms import Settings, environment
from learnloop_service.app.cli.client import Service
from learnloop_service.environment.json_type import Json

MODES: Mapping[str, float] = {"greedy": 0.0, "sampled": 1.0}
"""Temperatures by mode."""
PROMISING = 0.3
"""Success in training from which checkpoints are evaluated for the time to a share of the questions."""
_POLL_S = 1.0


def answers(
    service: Service, model: str, settings: Settings, seed: int, transcripts: int
) -> tuple[dict[str, Json], list[dict[str, Json]]]:
    """Return a model's figures by mode, and `transcripts` conversations of each. Raises RuntimeError."""
    figures: dict[str, Json] = {}
    read: list[dict[str, Json]] = []
    for mode, temperature in MODES.items():
        report, trajectories = evaluate(service, asked(model, settings, seed, temperature))
        figures[mode] = figures_of(report["models"][0], trajectories)
        read += [_conversation(service, mode, trajectory) for trajectory in trajectories[:transcripts]]
    return figures, read


def asked(model: str, settings: Settings, seed: int, temperature: float) -> dict[str, Json]:
    """Build the request for an evaluation of a model."""
    limit = settings.max_completion_tokens
    return {
        "environment": environment(settings),
        "models": [{"model": model}],
        "scenarios": settings.questions,
        "seed": seed,
        "temperature": temperature,
        "concurrency": 64,
        **({} if limit is None else {"max_completion_tokens": limit}),
    }


def evaluate(service: Service, request: Mapping[str, Json]) -> tuple[Json, list[Json]]:
    """Return an evaluation's report, and its trajectories without messages. Raises RuntimeError if it failed."""
    path = f"/evaluations/{service.call('POST', '/evaluations', json=dict(request))['evaluation_id']}"
    while (evaluation := service.call("GET", path))["status"] in ("queued", "running"):
        time.sleep(_POLL_S)
    if evaluation["status"] != "completed":
        raise RuntimeError(f"an evaluation is {evaluation['status']}: {evaluation['error']}")
    trajectories: list[Json] = []
    page: Json = {"next_cursor": None}
    while not trajectories or page["next_cursor"] is not None:
        query = {"limit": 100} | ({"cursor": page["next_cursor"]} if page["next_cursor"] else {})
        page = service.call("GET", f"{path}/trajectories", params=query)
        trajectories += page["items"]
    return evaluation["report"], sorted(trajectories, key=lambda trajectory: trajectory["scenario_id"])


def figures_of(reported: Json, trajectories: Sequence[Json]) -> dict[str, Json]:
    """Return a model's reported figures, and the shares of rollouts that called a tool and that were malformed."""
    outcomes = [outcome["outcome"] for outcome in trajectories]
    return {
        **{name: reported[name] for name in ("success", "reward", "turns", "errors", "rollouts")},
        "called_a_tool": fmean(outcome["turns"] > 0 for outcome in outcomes),
        "malformed": fmean(outcome["finish"] == "malformed" for outcome in outcomes),
    }


def time_to_share(service: Service, trained: Json, settings: Settings, seed: int, share: float) -> Iterator[Json]:
    """Evaluate a run's checkpoints greedily, from the first promising one to the first that answers `share`. `grpo_s`
    is how long after the demonstrations a checkpoint was saved."""
    shown_s = max((row["saved_s"] for row in trained["iterations"] if row["success"] is None), default=0.0)
    rows = (row for row in trained["iterations"] if row["success"] is not None)
    for row in dropwhile(lambda iteration: iteration["success"] < PROMISING, rows):
        report, _ = evaluate(service, asked(f"{trained['model']}@{row['step']}", settings, seed, 0.0))
        held_out = report["models"][0]["success"]
        grpo_s = round(row["saved_s"] - shown_s, 1)
        yield {"step": row["step"], "saved_s": row["saved_s"], "grpo_s": grpo_s, "held_out": held_out}
        if held_out["mean"] >= share:
            return


def _conversation(service: Service, mode: str, brief: Json) -> dict[str, Json]:
    fields = ("scenario_id", "scenario", "reward", "success", "outcome", "error")
    return {
        "mode": mode,
        **{name: brief[name] for name in fields},
        "messages": service.trajectory(brief["id"])["messages"],
    }
