"""Feedback: what happened to emails, and people's opinions of emails and sessions."""

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Query

from learnloop_service.app.agent_sessions.store import AgentSessions
from learnloop_service.app.api.dependencies import (
    NO_NUL,
    CurrentCaller,
    CurrentDatabase,
    CurrentQueries,
    CurrentService,
    RunId,
)
from learnloop_service.app.api.pages import ById, ByNumber
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.api.session_models import SessionId
from learnloop_service.app.db.tables import Feedback
from learnloop_service.app.feedback import evidence, store
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.feedback import (
    EmailFeedbackOut,
    FeedbackBatch,
    FeedbackBody,
    FeedbackOut,
    FeedbackTaken,
    RejectedEvent,
    SessionFeedbackOut,
)

router = keyed_router("feedback")


@router.post("/feedback")
async def take_feedback(service: CurrentService, caller: CurrentCaller, request: FeedbackBody) -> FeedbackTaken:
    """Store feedback on emails, answers, sessions and users. Takes one event, or up to 1,000 as `{"events": [...]}`.

    Events may be late, repeated and out of order: a withdrawal, too, can arrive before the event that it withdraws. A
    single invalid event is an error. In a batch the valid events are stored and the invalid ones are listed in the
    response.
    """
    events = request.events if isinstance(request, FeedbackBatch) else [request]
    records = await store.take(service.database, events, request.source, caller.sees, service.users)
    if not isinstance(request, FeedbackBatch) and records[0].error is not None:
        raise records[0].error
    return FeedbackTaken(
        accepted=sum(record.error is None and not record.duplicate for record in records),
        duplicates=sum(record.duplicate for record in records),
        rejected=[
            RejectedEvent(index=index, event_id=event.event_id, detail=str(record.error))
            for index, (event, record) in enumerate(zip(events, records, strict=True))
            if record.error is not None
        ],
        links={
            **{record.run_id: f"/runs/{record.run_id}/feedback" for record in records if record.run_id is not None},
            **{
                record.session_id: f"/sessions/{record.session_id}/feedback"
                for record in records
                if record.session_id is not None
            },
        },
    )


@router.get("/runs/{run_id}/feedback")
async def list_feedback(
    queries: CurrentQueries,
    database: CurrentDatabase,
    run_id: RunId,
    paging: ById,
    trajectory_id: Annotated[
        str | None,
        Query(max_length=200, pattern=NO_NUL, description="Only feedback on this trajectory. Default: all"),
    ] = None,
) -> Page[FeedbackOut]:
    """List the feedback events on a run's emails, most recently received first.

    Events that were withdrawn are left out. Those whose source is `simulator` come from the market simulator.
    """
    await queries.require_run(run_id)
    fetched = paging.fetched
    rows = await store.listed(database, run_id, before=paging.cursor, limit=fetched, trajectory_id=trajectory_id)
    return paging.page(
        rows,
        lambda row: FeedbackOut(
            **_same(row.Feedback, FeedbackOut.model_fields.keys() - {"over", "name", "iteration"}),
            over=row.Feedback.against_id,
            name=row.Feedback.outcome_name,
            iteration=row.iteration,
        ),
        lambda row: row.Feedback.id,
    )


@router.get("/sessions/{id}/feedback")
async def list_session_feedback(
    database: CurrentDatabase, caller: CurrentCaller, id: SessionId, paging: ById
) -> Page[SessionFeedbackOut]:
    """List what people thought of a session, most recently received first.

    Outcomes with a name are listed, too; events that were withdrawn are left out.
    """
    await AgentSessions(database).get(caller, id)
    rows = await store.of_session(database, id, before=paging.cursor, limit=paging.fetched)
    return paging.page(
        rows,
        lambda row: SessionFeedbackOut(
            **_same(row, SessionFeedbackOut.model_fields.keys() - {"over", "name"}),
            over=row.against_session_id,
            name=row.outcome_name,
        ),
        lambda row: row.id,
    )


@router.get("/runs/{run_id}/feedback/emails")
async def list_emails_with_feedback(
    queries: CurrentQueries, database: CurrentDatabase, run_id: RunId, paging: ByNumber
) -> Page[EmailFeedbackOut]:
    """List a run's emails that have feedback, each with the sum of its feedback."""
    await queries.require_run(run_id)
    emails = await evidence.emails(database, run_id, after=paging.after(-1), limit=paging.fetched)
    return paging.page(emails, EmailFeedbackOut.of, lambda row: row.seq)


def _same(row: Feedback, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}
