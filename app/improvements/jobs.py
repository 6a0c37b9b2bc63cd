"""The evaluations and runs of an improvement: their requests, and how they are started."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Candidate, Improvement, Run, Trajectory
from learnloop_service.app.domain.improvement_state import CandidateState, Rung
from learnloop_service.app.domain.stored_evaluation import Comparison, Gate, GateEvaluation
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.errors import Conflict
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.improvements.policy import PILOT_SAMPLES, PILOT_TASKS, SCREENING, NextMove
from learnloop_service.app.improvements.store import ImprovementRecord, change, change_candidate
from learnloop_service.app.operations.rejection_sampling import RolloutSource, best_rollouts, save_best
from learnloop_service.app.operations.start.evaluation import EvaluationStarter
from learnloop_service.app.operations.start.run import ForkOrigin, start_run
from learnloop_service.app.schemas.datasets import BestOfEvaluation
from learnloop_service.app.schemas.evaluations import EvaluationRequest, ModelToEvaluate
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.gate import GateRule

_STATES = {
    "measure": (CandidateState.MEASURING, "gate_id"),
    "screen": (CandidateState.SCREENING, "screening_id"),
    "compare": (CandidateState.MEASURING, "gate_id"),
    "train": (CandidateState.TRAINING, "run_id"),
}
"""State of a candidate while its job is in progress, and the column with the job, by kind of move."""
_OF_AGENT = ("environment", "judge", "agent", "max_turns", "max_completion_tokens", "rollout_timeout_s")
"""Fields that evaluations and runs have of the improvement."""
_PER_TASK = 4
"""Maximum number of its solutions of a task that the agent imitates."""


@dataclass(frozen=True, slots=True)
class ImprovementJobs:
    """Starts the evaluations and runs of improvements."""

    service: HandlerResources
    evaluations: EvaluationStarter

    async def start(self, record: ImprovementRecord, move: NextMove, limits: Mapping[str, float]) -> None:
        """Start the job of a move. That it is the improvement's is saved in the transaction that creates it."""
        job_id = str(ULID())

        async def save(tx: AsyncSession, _: object) -> None:
            kind = "run" if move.kind == "train" else "evaluation"
            purpose = {"pilot": "pilot", "test": "final"}.get(move.kind, str(move.number))
            await change(tx, record.improvement, job_kind=kind, job_id=job_id, job_for=purpose, reason=None)
            if move.number is not None:
                state, column = _STATES[move.kind]
                values = {"state": state, column: job_id, "error_share": move.error or None}
                await change_candidate(tx, record.candidates[move.number], **values)

        caller = caller_of(record.improvement)
        if move.kind != "train" or move.number is None:
            request, kind, fields = _evaluation(record, move, limits)
            await self.evaluations.start(job_id, request, caller, save, kind, **fields)
            return
        model, demonstrations, parent = record.candidates[move.number].model, None, None
        if move.rung is Rung.IMITATION:
            demonstrations = await _demonstrations(self.service, record)
        else:
            parent = await origin_of(self.service.database, record)
        run = learn_loop(record, move.rung, model, limits, demonstrations)
        await start_run(self.service, job_id, run, caller, save, parent)


def _evaluation(
    record: ImprovementRecord, move: NextMove, limits: Mapping[str, float]
) -> tuple[EvaluationRequest, type[Comparison], dict[str, Any]]:
    """Return the evaluation of a move, its kind, and what else `EvaluationStarter.start` is given. Its first model's
    rollouts of an earlier one, which is `recorded`, serve again where they hold."""
    request = ImprovementRequest.model_validate(record.improvement.request)
    assert request.validation is not None  # it is filled in when the improvement is accepted
    rows, earlier = [record.champion], None
    tasks: dict[str, Any] = {"split": "validation", "scenarios": request.validation}
    kind: type[Comparison] = Comparison
    fields: dict[str, Any] = {}
    match move.kind:
        case "pilot":
            count = min(PILOT_TASKS, request.validation)
            tasks = {"split": "train", "scenarios": count, "samples": PILOT_SAMPLES, "temperature": 1.0}
        case "screen":
            earlier = next((row.screening_id for row in reversed(record.candidates) if row.screening_id), None)
            tasks = {"split": "train", "scenarios": min(SCREENING[move.rung][0], max(1, request.validation // 2))}
        case "compare":
            rule, earlier = GateRule(error=move.error), record.champion.gate_id
            look_every = max(rule.look_every, request.concurrency // 2)
            kind = GateEvaluation
            fields["gate"] = Gate(error=move.error, exact=rule.exact, look_every=look_every, whole=True)
        case "test":
            rows, tasks = [*record.accepted.values()], {"split": "test", "scenarios": request.test}
    if move.number:
        rows.append(record.candidates[move.number])
    evaluation = evaluation_of(request, [_contestant(row) for row in rows], limits, **tasks)
    return evaluation, kind, {**fields, "recorded": {} if earlier is None else {0: earlier}}


def evaluation_of(
    request: ImprovementRequest, models: Sequence[ModelToEvaluate], limits: Mapping[str, float], **tasks: Any
) -> EvaluationRequest:
    """Return the evaluation of models in an improvement, on tasks of `tasks["split"]`."""
    return EvaluationRequest.model_validate(
        {name: getattr(request, name) for name in (*_OF_AGENT, "concurrency")}
        | {"models": models, "budget": limits or None}
        | {"seed": request.seed if tasks["split"] == "train" else request.held_out_seed}
        | tasks
    )


async def _demonstrations(service: HandlerResources, record: ImprovementRecord) -> Json:
    """Return what the warm start of imitation names. Raises Conflict if no rollout can be imitated.

    Repeated, it stores the same demonstrations, which makes no new version.
    """
    improvement = record.improvement
    if "oracle" in improvement.request["imitation"]["sources"] and improvement.facts["oracle"]:
        return {"oracle": improvement.facts["oracle"]}
    assert improvement.pilot is not None  # it is made before any rung
    pilot = improvement.pilot["evaluation_id"]
    solved = select(func.min(Trajectory.reward)).where(Trajectory.evaluation_id == pilot, Trajectory.success.is_(True))
    async with service.database() as tx:
        least = (await tx.execute(solved)).scalar_one()
    if least is None:
        raise Conflict("No rollout of the pilot solved its task, so there is nothing to imitate.")
    name = f"improvement-{improvement.id.lower()}"
    selection = BestOfEvaluation(name=name, min_reward=least, per_scenario=_PER_TASK)
    source = RolloutSource.of_evaluation(await EvaluationStore(service.database).get(pilot), selection)
    best, _ = await best_rollouts(service.database, source, selection, service.settings.max_graph_bytes)
    version = await save_best(service.database, improvement.project, name, source, best)
    return {"dataset": f"{version.name}@{version.version}"}


async def origin_of(database: Database, record: ImprovementRecord) -> ForkOrigin | None:
    """Return the run of the imitation that GRPO starts from, so that its rollouts attempt first what was not
    demonstrated; None without one, or if it was deleted."""
    champion, improvement = record.champion, record.improvement
    if champion.rung != Rung.IMITATION or champion.run_id is None:
        return None
    async with database() as tx:
        run = await tx.get(Run, champion.run_id)
    step = ModelName.parse(champion.model).step
    if run is None or step is None:
        return None
    shown = improvement.facts["oracle"] if "oracle" in improvement.request["imitation"]["sources"] else 0
    return ForkOrigin(run.id, step, learned=None, first_scenario=shown)


def learn_loop(
    record: ImprovementRecord,
    rung: Rung,
    model: str,
    limits: Mapping[str, float] | None = None,
    demonstrations: Json = None,
) -> LearnLoopRequest:
    """Return the learn-loop of imitation or GRPO, which starts from that model with the champion's prompt."""
    improvement, request = record.improvement, ImprovementRequest.model_validate(record.improvement.request)
    prompt = record.champion.prompt
    fields: dict[str, Any] = {
        **request.run,
        **{name: getattr(request, name) for name in _OF_AGENT},
        "name": f"{improvement.id[-6:]} {rung}",
        "prompt": None if prompt is None else prompt["sha256"],
        "model": {**request.model.model_dump(), "base_model": model, "project": improvement.project},
        "warm_start": None,
        "seed": request.seed,
        "budget": limits or None,
        "evaluation": request.run.get("evaluation", {})
        | {"scenarios": request.validation, "samples": 1, "test_scenarios": 0, "seed": request.held_out_seed},
    }
    if rung is Rung.GRPO and Rung.IMITATION in record.accepted:
        fields.setdefault("iterations", improvement.facts["iterations_after_imitation"])
    if rung is Rung.IMITATION:
        fields |= {"iterations": 0, "warm_start": {"demonstrations": demonstrations}}
    return LearnLoopRequest.model_validate(fields)


def label_of(candidate: Candidate) -> str:
    """Return what a candidate is called in the reports of its evaluations."""
    if candidate.number == 0:
        return "as it is"
    reference = candidate.prompt and PromptReference.model_validate(candidate.prompt)
    return f"{candidate.number} {candidate.rung}" + (f" {reference}" if candidate.rung == Rung.PROMPT else "")


def caller_of(improvement: Improvement) -> Caller:
    """Return who starts the evaluations and runs of an improvement."""
    return Caller.on_order(f"improvement:{improvement.id}", improvement.project, improvement.started_by)


def _contestant(candidate: Candidate) -> ModelToEvaluate:
    prompt = None if candidate.prompt is None else candidate.prompt["sha256"]
    name = {"prompted": candidate.model} if candidate.listed else {"model": candidate.model}
    return ModelToEvaluate(**name, prompt=prompt, label=label_of(candidate))
