"""The sample email of an iteration, written by the agent for the showcase scenario."""

from collections.abc import Mapping
from typing import Any

from learnloop_service.app.db.tables import Trajectory
from learnloop_service.app.schemas.results import ShowcaseEmail, ShowcaseScenario


def shows_email(outcome: Mapping[str, Any]) -> bool:
    """Whether the environment writes emails."""
    return "email" in outcome


def final_email(outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Return `subject`, `body` and `citations`, which are empty if the agent wrote no email."""
    email = outcome.get("email") or {}
    return {"subject": email.get("subject", ""), "body": email.get("body", ""), "citations": email.get("citations", [])}


def showcase_email(row: Trajectory) -> ShowcaseEmail:
    """Return the email of a showcase's trajectory."""
    assert row.iteration is not None
    return ShowcaseEmail(
        iteration=row.iteration,
        email_written=bool(row.outcome.get("email")),
        **final_email(row.outcome),
        trajectory_id=row.id,
        scenario=ShowcaseScenario(id=row.scenario_id, task=row.scenario["task"]),
        reward=row.reward,
        success=row.success,
    )
