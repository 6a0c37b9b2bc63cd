"""Database rows. Alembic's migrations create the tables; `alembic check` verifies that the two match.

Unless noted otherwise, a rate is in [0, 1], a time is timestamptz, and an id is a ULID (sortable by creation).
"""

from learnloop_service.app.db.tables.access import ApiKey, IdempotencyKey, SignIn
from learnloop_service.app.db.tables.agent_sessions import AgentSession, AgentSessionKey, SessionCall, SessionUse
from learnloop_service.app.db.tables.agent_tasks import OpenAgentTask
from learnloop_service.app.db.tables.base import Base
from learnloop_service.app.db.tables.checkpoints import Checkpoint, Promotion
from learnloop_service.app.db.tables.claimable import DayUse
from learnloop_service.app.db.tables.data import DatasetVersion, Document, InboxPart
from learnloop_service.app.db.tables.diagnoses import SavedDiagnosis
from learnloop_service.app.db.tables.evaluations import EvaluationEvent, EvaluationJob, RejudgedRollout
from learnloop_service.app.db.tables.improvements import Candidate, Improvement
from learnloop_service.app.db.tables.judging import JudgeCall, JudgeRate, JudgeVerdict
from learnloop_service.app.db.tables.releases import Release, ReleaseEvent, ReleaseObservation, ReleaseUnit
from learnloop_service.app.db.tables.runs import (
    Evaluation,
    Event,
    Feedback,
    Iteration,
    Journal,
    LedgerEntry,
    Reflection,
    RolloutRecord,
    Run,
    Trajectory,
)
from learnloop_service.app.db.tables.schedules import Schedule, ScheduleRun, UserScenario
from learnloop_service.app.db.tables.settings import Setting
from learnloop_service.app.db.tables.webhooks import WebhookAttempt, WebhookDelivery, WebhookEndpoint

__all__ = [
    "AgentSession",
    "AgentSessionKey",
    "ApiKey",
    "Base",
    "Candidate",
    "Checkpoint",
    "DatasetVersion",
    "DayUse",
    "Document",
    "Evaluation",
    "EvaluationEvent",
    "EvaluationJob",
    "Event",
    "Feedback",
    "IdempotencyKey",
    "Improvement",
    "InboxPart",
    "Iteration",
    "Journal",
    "JudgeCall",
    "JudgeRate",
    "JudgeVerdict",
    "LedgerEntry",
    "OpenAgentTask",
    "Promotion",
    "Reflection",
    "RejudgedRollout",
    "Release",
    "ReleaseEvent",
    "ReleaseObservation",
    "ReleaseUnit",
    "RolloutRecord",
    "Run",
    "SavedDiagnosis",
    "Schedule",
    "ScheduleRun",
    "SessionCall",
    "SessionUse",
    "Setting",
    "SignIn",
    "Trajectory",
    "UserScenario",
    "WebhookAttempt",
    "WebhookDelivery",
    "WebhookEndpoint",
]
