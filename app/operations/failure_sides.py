"""Finds the rollouts whose failures a caller asks about, and those that they are compared with."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, select

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.tenancy import EVALUATION, RUN, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Evaluation, EvaluationJob, Iteration, Run, Trajectory
from learnloop_service.app.domain.stored_evaluation import Comparison, parse_evaluation
from learnloop_service.app.errors import InvalidRequest, NotFound, existing
from learnloop_service.app.statistics.verdict import HEADLINES

_TRAIN = ("train", "sampled")


@dataclass(frozen=True, slots=True)
class FailureSide:
    """The rollouts of one model of an evaluation, or those of one kind of a run's iteration."""

    environment: str
    split: str
    mode: str
    evaluation_id: str | None = None
    model: str | None = None
    """Label of the evaluation's model."""
    number: int = 0
    """Number of that model."""
    judged: int = 0
    """Number of the evaluation's rollouts that are judged."""
    run_id: str | None = None
    iteration: int | None = None

    def rollouts(self) -> list[ColumnElement[bool]]:
        """Return the conditions for its judged rollouts."""
        row = Trajectory
        if self.evaluation_id is not None:
            judged = row.score_explanation.is_not(None)
            return [row.evaluation_id == self.evaluation_id, row.slot.startswith(f"{self.number}/"), judged]
        kind = row.kind == ("train" if self.split == "train" else "evaluation")
        iteration = [row.run_id == self.run_id, row.iteration == self.iteration]
        return [*iteration, kind, row.split == self.split, row.mode == self.mode, row.replaces.is_(None)]

    @property
    def nothing(self) -> str:
        """A sentence about a side without rollouts."""
        if self.evaluation_id is not None:
            return f"Evaluation {self.evaluation_id} has no judged rollouts of {self.model}: wait for some."
        what = f"{self.split}, {self.mode}, of iteration {self.iteration}"
        return f"Run {self.run_id} no longer has its rollouts ({what}): they were deleted because of their age."


@dataclass(frozen=True, slots=True)
class FailureQuestion:
    """What a caller asks about."""

    evaluation: str | None = None
    model: str | None = None
    """Label of one of the evaluation's models. Default: the last one."""
    run: str | None = None
    iteration: int | None = None
    """Default: the newest one with such rollouts."""
    split: str | None = None
    mode: str | None = None
    before: str | None = None
    """Id of an evaluation, or number of an iteration of the run. Default: the evaluation's first model, or the run's
    first evaluation."""


async def failure_sides(
    database: Database, caller: Caller, question: FailureQuestion
) -> tuple[FailureSide, FailureSide | None]:
    """Return the side that is asked about and the one before, if there is one. Raises NotFound, InvalidRequest."""
    if question.evaluation is not None and question.run is None:
        return await _of_evaluation(database, caller, question, question.evaluation)
    if question.run is not None and question.evaluation is None:
        return await _of_run(database, caller, question, question.run)
    raise InvalidRequest(("query", "evaluation"), "Name an evaluation, or a run; not both.")


async def _of_evaluation(
    database: Database, caller: Caller, question: FailureQuestion, id: str
) -> tuple[FailureSide, FailureSide | None]:
    for name in ("iteration", "split", "mode"):
        if getattr(question, name) is not None:
            raise InvalidRequest(("query", name), f"An evaluation has no choice of {name}: leave it out.")
    sides = await _models(database, caller, id, "evaluation")
    labels = [side.model for side in sides]
    if question.model is not None and question.model not in labels:
        named = ", ".join(map(str, labels))
        raise InvalidRequest(("query", "model"), f"Evaluation {id} has no model {question.model!r}; it has: {named}.")
    now = sides[-1] if question.model is None else sides[labels.index(question.model)]
    if question.before is None or question.before == id:
        return now, sides[0] if sides[0] != now else None
    return now, await _before(database, caller, question.before, now.model)


async def _before(database: Database, caller: Caller, id: str, model: str | None) -> FailureSide:
    """Return the side of another evaluation: its model of that label, or else its last one."""
    if id.isdecimal():
        raise InvalidRequest(("query", "before"), "Only a run has iterations: name an evaluation by its id.")
    sides = await _models(database, caller, id, "before")
    return next((side for side in sides if side.model == model), sides[-1])


async def _models(database: Database, caller: Caller, id: str, field: str) -> list[FailureSide]:
    """Return a side for each model of an evaluation. Raises NotFound, InvalidRequest."""
    await require(database, caller, EVALUATION, id)
    async with database() as tx:
        job = existing(await tx.get(EvaluationJob, id), "evaluation", id)
    stored = parse_evaluation(job.request)
    if not isinstance(stored, Comparison):
        what = f"Evaluation {id} compares no models on tasks: it is a what-if or a rejudging. Name another one."
        raise InvalidRequest(("query", field), what)
    mode = "sampled" if stored.temperature else "greedy"
    return [
        FailureSide(stored.environment.name, stored.split, mode, id, model.label, number, job.done)
        for number, model in enumerate(stored.models)
    ]


async def _of_run(
    database: Database, caller: Caller, question: FailureQuestion, id: str
) -> tuple[FailureSide, FailureSide | None]:
    if question.model is not None:
        raise InvalidRequest(("query", "model"), "A run has one model: leave `model` out.")
    await require(database, caller, RUN, id)
    async with database() as tx:
        run = existing(await tx.get(Run, id), "run", id)
        held_out = select(Evaluation.split, Evaluation.mode, Evaluation.iteration).where(Evaluation.run_id == id)
        trained = select(Iteration.iteration).where(Iteration.run_id == id, Iteration.iteration > 0)
        iterations = defaultdict[tuple[str, str], list[int]](list)
        for split, mode, iteration in await tx.execute(held_out.order_by(Evaluation.iteration)):
            iterations[split, mode].append(iteration)
        if first_to_last := list((await tx.execute(trained.order_by(Iteration.iteration))).scalars()):
            iterations[_TRAIN] = first_to_last
    kinds = [kind for kind in (*HEADLINES, *iterations) if kind in iterations and _fits(kind, question)]
    there = iterations[kinds[0]] if kinds else []
    if not there or question.iteration not in (None, *there):
        raise NotFound(f"Run {id} has no such rollouts. {_listed(iterations)}")
    (split, mode), iteration = kinds[0], there[-1] if question.iteration is None else question.iteration
    now = FailureSide(run.environment, split, mode, run_id=id, iteration=iteration)
    before = question.before
    if before is None:
        before = str(there[0]) if split != "train" and there[0] < iteration else None
    if before is None:
        return now, None
    if not before.isdecimal():
        return now, await _before(database, caller, before, None)
    if int(before) not in there:
        raise NotFound(f"Run {id} has no such rollouts of iteration {before}. {_listed(iterations)}")
    return now, FailureSide(run.environment, split, mode, run_id=id, iteration=int(before))


def _fits(kind: tuple[str, str], question: FailureQuestion) -> bool:
    return question.split in (None, kind[0]) and question.mode in (None, kind[1])


def _listed(iterations: Mapping[tuple[str, str], Sequence[int]]) -> str:
    """Return the rollouts that a run has, in a sentence."""
    kinds = [f"{split}, {mode}, of iterations {_few(those)}" for (split, mode), those in sorted(iterations.items())]
    return f"It has: {'; '.join(kinds)}." if kinds else "It has none yet."


def _few(numbers: Sequence[int]) -> str:
    """Return the numbers, or the first and the last of many."""
    if len(numbers) > 8:
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
