"""Shows why a run does not learn."""

from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Run
from learnloop_service.app.runs.diagnoses import causes_of, diagnoses_of, facts_of
from learnloop_service.app.schemas.diagnosis import DiagnosisOut, NotExaminedOut, RunDiagnosis
from learnloop_service.training.diagnosis.diagnose import not_examined
from learnloop_service.training.diagnosis.diagnosis import Cause, DiagnosisSettings


async def diagnosis(database: Database, run: Run) -> RunDiagnosis:
    """Return the run's diagnoses after its newest saved iteration."""
    rows = {row.cause: row for row in await diagnoses_of(database, run.id)}
    facts = await facts_of(database, run.id)
    missing = not_examined(facts, DiagnosisSettings(run.stored_request.config, run.base_model, run.usual_learning_rate))
    cause = next(iter(causes_of(run)), None)
    return RunDiagnosis(
        cause=None if cause is None else Cause(cause),
        diagnoses=[DiagnosisOut.of(rows[cause]) for cause in Cause if cause in rows],
        not_examined=[NotExaminedOut(cause=unexamined.cause, reason=unexamined.reason) for unexamined in missing],
    )
