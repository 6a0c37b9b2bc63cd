"""Finds out in which run on served answers a session was learned from, and in which step, or why it was not."""

import json
from datetime import datetime

from sqlalchemy import and_, cast, func, or_, select
from sqlalchemy.dialects.postgresql import JSONB, JSONPATH

from learnloop_service.app.agent_sessions.consented import SESSION
from learnloop_service.app.agent_sessions.served import AnswerSource, why_left_out
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Document, Iteration, RolloutRecord, Run, UserScenario
from learnloop_service.app.runs.journal_entries import text_of
from learnloop_service.app.schemas.agent_sessions import LearnedFrom
from learnloop_service.training.journal import SERVED_USED
from learnloop_service.training.loop.served_answers import ANSWERS


async def learned_from(database: Database, session: AgentSession) -> LearnedFrom | None:
    """Return what became of the session in the newest run that froze it, or else in the newest one of its name."""
    served, project, id = Run.request["served"], session.project, f"{SESSION}.{session.id}"
    link = and_(UserScenario.user_hash == session.user_hash, UserScenario.scenario_id == id)
    froze_it = served["sha256"].astext.in_(select(UserScenario.sha256).where(link))
    name = session.asked_model.removeprefix(f"{project}/")
    of_name = served["source"]["model"].astext.in_((name, f"{project}/{name}"))
    path = cast("$[*] ? (@.id == $id)", JSONPATH)
    row = func.jsonb_path_query_first(Document.content, path, func.jsonb_build_object("id", id), type_=JSONB)
    its = and_(Document.project == project, Document.sha256 == served["sha256"].astext)
    trained = and_(Iteration.run_id == Run.id, Iteration.iteration == row["iteration"].as_integer())
    record = RolloutRecord
    noted = and_(record.run_id == Run.id, record.iteration == Iteration.iteration, record.name == SERVED_USED)
    query = select(Run, row, Iteration.step, Iteration.train_metrics, record.value).join(Document, its)
    query = query.outerjoin(Iteration, trained).outerjoin(record, noted)
    query = query.where(Run.model_project == project, or_(froze_it, of_name))
    async with database() as tx:
        newest = (await tx.execute(query.order_by(froze_it.desc(), Run.id.desc()).limit(1))).one_or_none()
    if newest is None:
        return None
    run, frozen, step, metrics, used = newest
    if frozen is None:
        facts = run.request["served"]
        source, at = AnswerSource.model_validate(facts["source"]), datetime.fromisoformat(facts["frozen_at"])
        return LearnedFrom(run_id=run.id, why_not=await why_left_out(database, session, source, at))
    is_lost = used is not None and session.id not in json.loads(text_of(used) or "[]")
    why = "withdrawn before its step" if is_lost else None
    if metrics is None:
        why = "of a step that has not come"
    elif not metrics.get(ANSWERS):
        why = "of a step that is not taken"
    why = why if frozen["iteration"] else "held out to estimate the gain"
    known = {"outcome": frozen["outcome"], "expected": frozen["forecast"], "why_not": why}
    return LearnedFrom(run_id=run.id, step=None if why else step, **known)
