"""Consent: which sessions and questions can become tasks. Every way from them to tasks asks here.

A request consents by `"train": true`, or by saying nothing in a project of LEARNLOOP_TRAIN_ON_PROJECTS. Questions that
failed, and sessions without an answer, do not become tasks: what fails altogether is rarer among tasks than in traffic.
"""

from sqlalchemy import ColumnElement, and_, func, not_

from learnloop_service.app.db.tables import AgentSession, Run, Trajectory
from learnloop_service.app.domain.agent_session_state import AgentSessionState


def consented_sessions(project: str) -> ColumnElement[bool]:
    """Select the project's sessions outside of runs that are over and whose requests may be trained on."""
    return and_(_over(project), AgentSession.may_train)


def refused_sessions(project: str) -> ColumnElement[bool]:
    """Select the project's sessions outside of runs that are over and whose requests may not be trained on."""
    return and_(_over(project), not_(AgentSession.may_train))


def consented_asks(project: str) -> ColumnElement[bool]:
    """Select the project's answered questions that may be trained on, in a query that joins `Run` if there is one."""
    row = Trajectory
    of_project = func.coalesce(Run.model_project, row.project, func.split_part(row.asked_as, "/", 1))
    answered = and_(row.kind == "ask", row.error.is_(None), row.turns > 0)
    return and_(of_project == project, row.may_train, answered)


def _over(project: str) -> ColumnElement[bool]:
    row = AgentSession
    return and_(row.project == project, row.entry.is_(None), row.state != AgentSessionState.OPEN)
