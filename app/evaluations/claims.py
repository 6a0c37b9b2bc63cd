"""Claims of evaluations."""

from collections.abc import Mapping
from typing import Any

from learnloop_service.app.claims.claims import Claims
from learnloop_service.app.db.tables import EvaluationJob
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.events.log import append_to_evaluation

UNOWNED: Mapping[str, Any] = {"owner": None, "lease_until": None, "wait_reason": None}
"""Columns to set on an evaluation that no worker drives."""


class EvaluationClaims(Claims[EvaluationJob]):
    """One worker's claims on evaluations."""

    table = EvaluationJob
    noun = "evaluation"
    append = staticmethod(append_to_evaluation)
    started, released = EventType.EVALUATION_STARTED, EventType.EVALUATION_RELEASED
    failed = EventType.EVALUATION_FAILED
    unowned = UNOWNED
