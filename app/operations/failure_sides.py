"""Finds the rollouts whose failures a caller asks about, and those that they are compared with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, literal, select, union_all

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.tenancy import EVALUATION, RUN, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, EvaluationJob, Iteration, Run, Trajectory
from learnloop_service.app.domain.stored_evaluation import Comparison, parse_evaluation
from learnloop_service.app.errors import InvalidRequest, NotFound, existing
from learnloop_service.app.schemas.failures import FailureQuestion
from learnloop_service.app.statistics.verdict import HEADLINES

_KINDS = (*HEADLINES, ("validation", "greedy"), ("test", "greedy"), ("train", "sampled"))
"""Split and mode of a run's rollouts, those first that are shown by default."""


@dataclass(frozen=True, slots=True)
class FailureSide:
    """The rollouts of a model in an evaluation, or of one kind in a run's iteration."""

    name: str
    """The model's label, or the iteration."""
    source: str
    """Which evaluation or run has the rollouts, and how many of them were judged."""
    environment: str
    rollouts: Sequence[ColumnElement[bool]] = field(compare=False)
    """Conditions that its judged rollouts meet."""
    split: str = "test"
    """The tasks that they are of."""


async def failure_sides(
    database: Database, caller: Caller, question: FailureQuestion
) -> tuple[FailureSide, FailureSide | None]:
    """Return the side that is asked about and the one before, if there is one. Raises NotFound, InvalidRequest."""
    if (question.evaluation is None) == (question.run is None):
        raise InvalidRequest(("query", "evaluation"), "Name an evaluation, or a run; not both.")
    if question.run is not None:
        return await _of_run(database, caller, question, question.run)
    if (question.iteration, question.split, question.mode) != (None, None, None):
        raise InvalidRequest(("query", "iteration"), "Only a run has a choice of iteration, split and mode.")
    models = await _models(database, caller, str(question.evaluation))
    first, label = next(iter(models)), question.model or [*models][-1]
    if label not in models:
        raise InvalidRequest(("query", "model"), f"There is no model {label!r}; there are: {', '.join(models)}.")
    if question.before in (None, question.evaluation):
        return models[label], None if label == first else models[first]
    if str(question.before).isdecimal():
        raise InvalidRequest(("query", "before"), "Only a run has iterations: name an evaluation by its id.")
    before = await _models(database, caller, str(question.before))
    return models[label], before.get(label, [*before.values()][-1])


async def _models(database: Database, caller: Caller, id: str) -> dict[str, FailureSide]:
    """Return a side for each model of an evaluation, by label. Raises NotFound, InvalidRequest."""
    await require(database, caller, EVALUATION, id)
    return await evaluation_sides(database, id)


async def evaluation_sides(database: Database, id: str) -> dict[str, FailureSide]:
    """Return a side for each model of an evaluation of any project, by label. Raises NotFound, InvalidRequest."""
    async with database() as tx:
        job = existing(await tx.get(EvaluationJob, id), "evaluation", id)
    stored, row = parse_evaluation(job.request), Trajectory
    if not isinstance(stored, Comparison):
        what = f"Evaluation {id} is a what-if or a rejudging: name one that compares models."
        raise InvalidRequest(("query", "evaluation"), what)
    source, judged = f"evaluation {id}, {job.done} judged", row.score_explanation.is_not(None)
    return {
        model.label: FailureSide(
            model.label,
            source,
            stored.environment.name,
            [row.evaluation_id == id, row.slot.startswith(f"{number}/"), judged],
            stored.split,
        )
        for number, model in enumerate(stored.models)
    }


async def _of_run(
    database: Database, caller: Caller, question: FailureQuestion, id: str
) -> tuple[FailureSide, FailureSide | None]:
    if question.model is not None:
        raise InvalidRequest(("query", "model"), "A run has one model: leave `model` out.")
    await require(database, caller, RUN, id)
    trained = select(literal("train"), literal("sampled"), Iteration.iteration).where(Iteration.run_id == id)
    evaluated = select(Evaluation.split, Evaluation.mode, Evaluation.iteration).where(Evaluation.run_id == id)
    async with database() as tx:
        run = existing(await tx.get(Run, id), "run", id)
        rows = (await tx.execute(union_all(evaluated, trained.where(Iteration.iteration > 0)))).all()
    saved = {kind: sorted(n for *of, n in rows if tuple(of) == kind) for kind in _KINDS}
    fitting = [(s, m) for s, m in _KINDS if question.split in (None, s) and question.mode in (None, m) and saved[s, m]]
    split, mode = kind = next(iter(fitting), _KINDS[0])

    def side(iteration: int) -> FailureSide:
        if not fitting or iteration not in saved[kind]:
            raise NotFound(f"Run {id} has no such rollouts. It has: {_listed(saved.items())}.")
        row, purpose = Trajectory, "train" if split == "train" else "evaluation"
        which = [row.run_id == id, row.iteration == iteration, row.kind == purpose, row.replaces.is_(None)]
        source = f"run {id}, {split}, {mode}"
        rollouts = [*which, row.split == split, row.mode == mode]
        return FailureSide(f"iteration {iteration}", source, run.environment, rollouts, split)

    now = side(max(saved[kind], default=0) if question.iteration is None else question.iteration)
    if question.before is not None and question.before.isdecimal():
        return now, side(int(question.before))
    if question.before is not None:
        return now, [*(await _models(database, caller, question.before)).values()][-1]
    baseline = side(saved[kind][0])
    return now, None if split == "train" or baseline == now else baseline


def _listed(saved: Iterable[tuple[tuple[str, str], Sequence[int]]]) -> str:
    """Return the iterations of each kind that a run has."""
    kinds = [f"{split}, {mode}, of iterations {', '.join(map(str, those))}" for (split, mode), those in saved if those]
    return "; ".join(kinds) or "none yet"
