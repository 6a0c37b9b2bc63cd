"""Builds the data of an iteration's event, for the frontend."""

from dataclasses import asdict
from typing import Any

from learnloop_service.app.domain.run_state import RunStatus
from learnloop_service.app.domain.supervised import supervised_figures
from learnloop_service.app.results.showcase import final_email, shows_email
from learnloop_service.training.types import IterationResult

_NAMED = 100
"""Number of demonstrations that an event names."""


def iteration_data(result: IterationResult) -> dict[str, Any]:
    """Return the event's data, without the run and the time."""
    return {
        "iteration": result.iteration,
        "status": RunStatus.RUNNING,
        "rewards": asdict(result.rewards),
        "success": result.success,
        "step": result.step,
        **_sampled(result),
        **_supervised(result),
        **({"left_out": list(result.left_out[:_NAMED])} if result.left_out else {}),
        **_showcase(result),
    }


def _sampled(result: IterationResult) -> dict[str, Any]:
    """Return the figures of rollouts that ran ahead."""
    if not result.staleness:
        return {}
    return {"sampled_step": result.sampled_step, "staleness": result.staleness}


def _supervised(result: IterationResult) -> dict[str, Any]:
    figures = supervised_figures(result.train_metrics)
    return {} if figures is None else {"supervised": figures}


def _showcase(result: IterationResult) -> dict[str, Any]:
    """Return the email and the node scores, if the environment has them. Feedback refers to the `trajectory_id`."""
    if result.reflection is None:
        return {}
    showcase, scores = result.reflection.showcase.rollout, result.reflection.state.get("node_scores")
    fields: dict[str, Any] = {"trajectory_id": showcase.id}
    if shows_email(showcase.outcome):
        fields |= {
            "final_email": final_email(showcase.outcome),
            "email_written": bool(showcase.outcome.get("email")),
        }
    return fields if scores is None else fields | {"node_scores": dict(scores)}
