"""The evaluations and runs of an improvement: their requests, and how they are started."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Candidate, Improvement, Run
from learnloop_service.app.domain.improvement_state import Rung
from learnloop_service.app.domain.stored_evaluation import Comparison, Gate, GateEvaluation
from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.improvements.policy import PILOT_SAMPLES, PILOT_TASKS
from learnloop_service.app.improvements.store import ImprovementRecord
from learnloop_service.app.operations.start.evaluation import EvaluationStarter, StartedEvaluation
from learnloop_service.app.operations.start.run import ForkOrigin, Started, start_run
from learnloop_service.app.schemas.evaluations import EvaluationBudget, EvaluationRequest, ModelToEvaluate
from learnloop_service.app.schemas.improvements import ImprovementRequest
from learnloop_service.app.schemas.run_request import LearnLoopRequest
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.gate import GateRule

Save = Callable[[AsyncSession, str], Awaitable[None]]
"""Saves, in the transaction that creates a job, that it is the improvement's. It is given the job's id."""


@dataclass(frozen=True, slots=True)
class ImprovementJobs:
    """Starts the evaluations and runs of improvements."""

    service: HandlerResources
    evaluations: EvaluationStarter

    async def measure(self, record: ImprovementRecord, save: Save, limits: Mapping[str, Json]) -> None:
        """Let the agent as it is do the validation tasks."""
        tasks = record.improvement.request["validation"]
        await self._evaluate(record, [record.candidates[0]], save, limits, split="validation", scenarios=tasks)

    async def pilot(self, record: ImprovementRecord, save: Save, limits: Mapping[str, Json]) -> None:
        """Let the champion do training tasks, several times each."""
        count = min(PILOT_TASKS, record.improvement.request["validation"])
        tasks: dict[str, Any] = {"scenarios": count, "samples": PILOT_SAMPLES, "temperature": 1.0}
        await self._evaluate(record, [record.champion], save, limits, split="train", **tasks)

    async def screen(
        self, record: ImprovementRecord, candidate: Candidate, tasks: int, save: Save, limits: Mapping[str, Json]
    ) -> None:
        """Let the champion and a candidate do training tasks."""
        most = max(1, record.improvement.request["validation"] // 2)
        rows = [record.champion, candidate]
        earlier = next((row.screening_id for row in reversed(record.candidates) if row.screening_id), None)
        await self._evaluate(record, rows, save, limits, recorded=earlier, split="train", scenarios=min(tasks, most))

    async def compare(
        self, record: ImprovementRecord, candidate: Candidate, error: float, save: Save, limits: Mapping[str, Json]
    ) -> None:
        """Let the champion and a candidate do validation tasks, until it is decided whether the candidate is better."""
        request = record.improvement.request
        rule, at_once = GateRule(error=error), request["concurrency"] // 2
        gate = Gate(error=error, exact=rule.exact, look_every=max(rule.look_every, at_once), whole=True)
        tasks = {"split": "validation", "scenarios": request["validation"]}
        await self._evaluate(
            *(record, [record.champion, candidate], save, limits),
            kind=GateEvaluation,
            fields={"gate": gate},
            recorded=record.champion.gate_id,
            **tasks,
        )

    async def test(self, record: ImprovementRecord, save: Save, limits: Mapping[str, Json]) -> None:
        """Let the agent as it was and the champion of each rung do the test tasks."""
        rows = tested_candidates(record)
        await self._evaluate(record, rows, save, limits, split="test", scenarios=record.improvement.request["test"])

    async def _evaluate(
        self,
        record: ImprovementRecord,
        candidates: Sequence[Candidate],
        save: Save,
        limits: Mapping[str, Json],
        kind: type[Comparison] = Comparison,
        fields: Mapping[str, Any] | None = None,
        recorded: str | None = None,
        **changes: Any,
    ) -> None:
        """Start an evaluation. The champion's rollouts of `recorded`, an earlier one, serve again where they hold."""
        improvement = record.improvement
        request = ImprovementRequest.model_validate(improvement.request)
        held_out = changes["split"] != "train"
        evaluation = EvaluationRequest(
            models=[_contestant(candidate) for candidate in candidates],
            environment=request.environment,
            judge=request.judge,
            agent=request.agent,
            seed=request.held_out_seed if held_out else request.seed,
            max_turns=request.max_turns,
            max_completion_tokens=request.max_completion_tokens,
            rollout_timeout_s=request.rollout_timeout_s,
            concurrency=request.concurrency,
            budget=None if (budget := _budget(limits)) is None else EvaluationBudget(**budget),
            **changes,
        )

        async def also(tx: AsyncSession, started: StartedEvaluation) -> None:
            await save(tx, started.job.id)

        await self.evaluations.start(
            str(ULID()),
            evaluation,
            caller_of(improvement),
            also,
            kind,
            recorded={} if recorded is None else {0: recorded},
            **(fields or {}),
        )

    async def train(
        self,
        record: ImprovementRecord,
        candidate: Candidate,
        save: Save,
        limits: Mapping[str, Json],
        demonstrations: Json = None,
    ) -> None:
        """Start the run of a candidate. `demonstrations` are those that imitation imitates."""
        run_id, caller = str(ULID()), caller_of(record.improvement)

        async def also(tx: AsyncSession, started: Started) -> None:
            await save(tx, run_id)

        request = learn_loop(record, Rung(candidate.rung), candidate.model, _budget(limits), demonstrations)
        parent = await origin_of(self.service.database, record) if candidate.rung == Rung.GRPO else None
        await start_run(self.service, run_id, request, caller.actor, also, parent)


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
    budget: Mapping[str, Json] | None = None,
    demonstrations: Json = None,
) -> LearnLoopRequest:
    """Return the learn-loop of imitation or GRPO, which starts from that model with the champion's prompt."""
    improvement, request = record.improvement, ImprovementRequest.model_validate(record.improvement.request)
    prompt, evaluation = record.champion.prompt, request.run.get("evaluation", {})
    fields: dict[str, Any] = {
        **request.run,
        "name": f"{improvement.id[-6:]} {rung}",
        "environment": request.environment,
        "agent": request.agent,
        "judge": request.judge,
        "prompt": None if prompt is None else prompt["sha256"],
        "model": {**request.model.model_dump(), "base_model": model, "project": improvement.project},
        "warm_start": None,
        "seed": request.seed,
        "max_turns": request.max_turns,
        "max_completion_tokens": request.max_completion_tokens,
        "rollout_timeout_s": request.rollout_timeout_s,
        "budget": budget,
        "evaluation": {
            **evaluation,
            "scenarios": improvement.request["validation"],
            "samples": 1,
            "test_scenarios": 0,
            "seed": request.held_out_seed,
        },
    }
    imitated = any(row.rung == Rung.IMITATION and row.state == "accepted" for row in record.candidates)
    if rung is Rung.GRPO and imitated:
        fields.setdefault("iterations", improvement.facts["iterations_after_imitation"])
    if rung is Rung.IMITATION:
        fields |= {"iterations": 0, "warm_start": {"demonstrations": demonstrations}}
    return LearnLoopRequest.model_validate(fields)


def tested_candidates(record: ImprovementRecord) -> list[Candidate]:
    """Return the agent as it was, and the last accepted candidate of each rung."""
    accepted = {row.rung: row for row in record.candidates if row.state == "accepted"}
    return list(accepted.values())


def label_of(candidate: Candidate) -> str:
    """Return what a candidate is called in the reports of its evaluations."""
    if candidate.number == 0:
        return "as it is"
    reference = candidate.prompt and PromptReference.model_validate(candidate.prompt)
    return f"{candidate.number} {candidate.rung}" + (f" {reference}" if candidate.rung == Rung.PROMPT else "")


def caller_of(improvement: Improvement) -> Caller:
    """Return who starts the evaluations and runs of an improvement."""
    return Caller(f"improvement:{improvement.id}", improvement.project, frozenset(Scope))


def _contestant(candidate: Candidate) -> ModelToEvaluate:
    prompt = None if candidate.prompt is None else candidate.prompt["sha256"]
    name = {"prompted": candidate.model} if candidate.listed else {"model": candidate.model}
    return ModelToEvaluate(**name, prompt=prompt, label=label_of(candidate))


def _budget(limits: Mapping[str, Json]) -> dict[str, Json] | None:
    return {name: value for name, value in limits.items() if value is not None} or None
