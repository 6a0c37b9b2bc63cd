"""Requests of evaluations as they were stored before each kind had its own class."""

from typing import Any

_MODELS = [
    {"label": "base", "kind": "trained", "model": "Qwen/Q", "step": None, "backend": "embedded", "spec": None},
    {"label": "good", "kind": "trained", "model": "p/m@3", "step": 3, "backend": "embedded", "spec": None},
]


def stored_now(request: dict[str, Any]) -> dict[str, Any]:
    """The request as it is stored today, with null for what earlier versions did not store."""
    trial = request.get("trial")
    return request | {
        "gate": None,
        "models": [model | {"prompt": None, "recorded": None} for model in request["models"]],
        "trial": trial and trial | {"prompt": None},
    }


COMPARISON: dict[str, Any] = {
    "models": _MODELS,
    "environment": {"name": "email_search", "config": {"inbox": {"sha256": "ab"}}},
    "judge": {"name": "correctness", "config": {}},
    "agent": None,
    "split": "test",
    "scenarios": 30,
    "samples": 2,
    "seed": 7,
    "temperature": 0.0,
    "max_turns": 6,
    "max_completion_tokens": 256,
    "rollout_timeout_s": 120.0,
    "concurrency": 8,
    "trial": None,
    "what_if": None,
    "rejudge": None,
    "budget": {"max_usd": 5.0, "max_minutes": None, "max_tokens": 10000},
}
TRIAL: dict[str, Any] = {
    "project": "p",
    "name": "live",
    "champion": 4,
    "incumbent": None,
    "model_name": "m",
    "step": 3,
    "backend": "embedded",
    "actor": "operator",
    "alpha": 0.05,
    "margin": 0.1,
    "look_every": 5,
    "release_id": None,
}
WHAT_IF: dict[str, Any] = {
    "trajectory_id": "01J",
    "turns": [1, 2, 3, 4],
    "search": "bisect",
    "edit": {"content": "Be quick.", "message": None, "added": True},
    "earlier": [{"content": "Be slow.", "message": 1, "added": False}],
    "own_seed": None,
    "state": ["01R", 2],
    "counts": False,
    "exact": True,
}
REJUDGE: dict[str, Any] = {
    "run_id": "01R",
    "kinds": ["train", "evaluation"],
    "first": 0,
    "last": 9,
    "repeats": 2,
    "rollouts": 80,
    "code": "cd",
}
