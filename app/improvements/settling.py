"""What the evaluations and runs of an improvement came to, saved in its rows when they end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sqlalchemy import func

from learnloop_service.app.db.tables import Candidate, EvaluationJob, Run
from learnloop_service.app.domain.evaluation_state import EvaluationStatus
from learnloop_service.app.domain.improvement_state import CandidateState, ImprovementStatus, Rung
from learnloop_service.app.domain.run_state import TERMINAL, RunStatus
from learnloop_service.app.domain.stored_evaluation import parse_evaluation
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.app.evaluations.report import differences, models_without_figures
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.improvements.jobs import caller_of
from learnloop_service.app.improvements.policy import passed
from learnloop_service.app.improvements.store import NO_JOB, SETTLED, ImprovementRecord, ImprovementStore
from learnloop_service.app.operations.agent_texts import agent_texts
from learnloop_service.app.runs.configuration import is_replaced
from learnloop_service.app.runs.stored_prompts import save_prompt
from learnloop_service.app.service import HandlerResources
from learnloop_service.environment.json_type import Json
from learnloop_service.environment.wording import counted
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.gate import sign_test


@dataclass(frozen=True, slots=True)
class Settling:
    """Settles the jobs of improvements that have ended."""

    service: HandlerResources
    store: ImprovementStore

    async def settle(self, record: ImprovementRecord) -> bool:
        """Save what the job came to. Returns whether it has ended, so that there is a next move. Raises Taken."""
        improvement = record.improvement
        assert improvement.job_id is not None
        if improvement.job_kind == "run":
            return await self._settle_run(record, await self.store.job(Run, improvement.job_id))
        job = await self.store.job(EvaluationJob, improvement.job_id)
        if job is None:
            return await self._lost(record, f"evaluation {improvement.job_id} was deleted")
        if job.status not in SETTLED:  # another process started it since the improvement was due
            return False
        if job.status == EvaluationStatus.PAUSED:
            return await self._stopped(record, job.shortage is not None, f"Evaluation {job.id} is paused")
        errors = models_without_figures(job.report) if job.report is not None else {}
        if job.status != EvaluationStatus.COMPLETED or errors:
            reason = errors.get(0) or errors.get(1) or job.error or f"evaluation {job.id} is {job.status}"
            is_unreachable = 1 in errors and bool(job.report and job.report["models"][1].get("unreachable"))
            state = CandidateState.UNREACHABLE if is_unreachable else CandidateState.FAILED
            return await self._lost(record, reason, None if 0 in errors else state)
        if improvement.job_for == "pilot":
            await self.store.change(record, pilot=await self._pilot(job), **NO_JOB)
        elif improvement.job_for == "final":
            await self.store.change(record, final=_final(record, job), **NO_JOB)
        else:
            await self._decide(record, record.candidates[int(improvement.job_for or 0)], job)
        return True

    async def _decide(self, record: ImprovementRecord, candidate: Candidate, job: EvaluationJob) -> None:
        """Save what an evaluation decides on a candidate."""
        assert job.report is not None
        if candidate.number == 0:
            values = {**await self._own_texts(record, candidate, job), "figures": _figures(job.report["models"][0])}
            state = CandidateState.ACCEPTED
        elif candidate.state == CandidateState.SCREENING:
            rows = await EvaluationStore(self.service.database).rows(job.id)
            training = _counts(differences(parse_evaluation(job.request), rows))
            reason = passed(Rung(candidate.rung), **training)
            state = CandidateState.PROPOSED if reason is None else CandidateState.REFUSED
            usd = _figures(job.report["models"][1])["usd"]
            values = {"reason": reason, "evidence": {"training": {**training, "usd": usd}}}
        else:
            gate = job.report["gate"]
            evidence = {**(candidate.evidence or {}), **{name: gate[name] for name in ("won", "lost", "tasks")}}
            if gate["decision"] == "better":
                state, values = CandidateState.ACCEPTED, {"figures": _figures(job.report["models"][1])}
            else:
                reason = f"not shown to be better on {counted(gate['tasks'], 'validation task')}"
                state, values = CandidateState.REFUSED, {"reason": reason}
            values["evidence"] = evidence
        await self.store.decide(record, candidate, state, **values)

    async def _own_texts(self, record: ImprovementRecord, candidate: Candidate, job: EvaluationJob) -> dict[str, Json]:
        """Return the prompt of an agent whose code is fixed, as found in its requests and stored, or why there is
        none. Empty for other agents, and for one that has a prompt."""
        improvement, environment = record.improvement, parse_evaluation(job.request).environment
        if candidate.prompt is not None or not is_replaced(environment):
            return {}
        caller = caller_of(improvement)
        try:
            found = await agent_texts(self.service.database, caller, job.id, None)
        except InvalidRequest as error:
            return {"reason": str(error)}
        assert found.prompt is not None  # without one it raises
        origin = {"author": caller.actor, "found_in": {"evaluation": job.id}}
        stored = await save_prompt(self.service.database, improvement.project, found.prompt, environment.name, origin)
        return {"prompt": stored.model_dump()}

    async def _lost(
        self, record: ImprovementRecord, reason: str, state: CandidateState | None = CandidateState.FAILED
    ) -> bool:
        """Save that a job failed, was cancelled or deleted: that is the end of its candidate, or else, and with None as
        the candidate's state, of the improvement."""
        purpose = record.improvement.job_for or ""
        if state is not None and purpose.isdecimal() and int(purpose):
            await self.store.decide(record, record.candidates[int(purpose)], state, reason=reason)
            return True
        ended = {"status": ImprovementStatus.FAILED, "finished_at": func.now(), "reason": reason}
        await self.store.change(record, **ended, **NO_JOB)
        return False

    async def _stopped(self, record: ImprovementRecord, by_budget: bool, what: str) -> bool:
        """Save that the job is paused. It is resumed with the improvement."""
        if by_budget:
            values = {"status": ImprovementStatus.BUDGET, "finished_at": func.now(), "reason": f"{what} at its limit."}
        else:
            values = {"status": ImprovementStatus.PAUSED, "reason": f"{what}. It is resumed with the improvement."}
        await self.store.change(record, **values)
        return False

    async def _pilot(self, job: EvaluationJob) -> Json:
        """Return what the agent did on training tasks."""
        tasks: dict[int, list[Any]] = {}
        for slot, row in (await EvaluationStore(self.service.database).rows(job.id)).items():
            tasks.setdefault(slot.scenario, []).append(row)
        groups = list(tasks.values())
        assert job.report is not None
        return {
            "evaluation_id": job.id,
            "tasks": len(groups),
            "samples": max(map(len, groups)),
            "success": fmean(bool(row.success) for rows in groups for row in rows),
            "solved_once": fmean(any(row.success for row in rows) for rows in groups),
            "groups_differ": fmean(len({row.reward for row in rows if row.reward is not None}) > 1 for rows in groups),
            "inconsistent": fmean(bool(rows[0].success) != bool(rows[-1].success) for rows in groups),
            "tokens": job.report["models"][0]["prompt_tokens"] + job.report["models"][0]["completion_tokens"],
            "seconds": job.driven_s / job.total,
        }

    async def _settle_run(self, record: ImprovementRecord, run: Run | None) -> bool:
        """Decide on a run that has ended, or cancel one that has reached the target."""
        candidate = record.candidates[int(record.improvement.job_for or 0)]
        if run is None:
            return await self._lost(record, f"run {candidate.run_id} was deleted")
        if run.status == RunStatus.PAUSED:
            return await self._stopped(record, run.shortage is not None, f"Run {run.id} is paused")
        target, whole = record.improvement.request["target"], candidate.rung == Rung.IMITATION
        if run.status not in TERMINAL and (whole or target is None or run.cancel_requested):
            return False
        compared = await self._compared(record, candidate, run)
        accepted = accepted_of(compared, target)
        if run.status not in TERMINAL:
            if accepted is not None and accepted.success >= target:
                await self.service.store.cancel(run.id, caller_of(record.improvement).actor)
                self.service.runner.nudge(run.id)
            return False
        if not compared:
            return await self._lost(record, f"run {run.id} is {run.status}: {run.error or 'it has no checkpoint'}")
        best = accepted or max(compared, key=lambda checkpoint: checkpoint.success)
        values: dict[str, Any] = {"evidence": best.evidence, "figures": best.figures}
        if accepted is not None:
            state, values["iteration"] = CandidateState.ACCEPTED, accepted.iteration
            values["model"] = str(ModelName(run.model_project, run.model_name, accepted.step))
        else:
            state, checkpoints = CandidateState.REFUSED, counted(len(compared), "checkpoint")
            best_one = f"the best one solved {best.success:.0%}"
            values["reason"] = f"none of its {checkpoints} was shown to be better; {best_one}"
        await self.store.decide(record, candidate, state, **values)
        return True

    async def _compared(
        self, record: ImprovementRecord, candidate: Candidate, run: Run
    ) -> Sequence["ComparedCheckpoint"]:
        """Return the evaluated checkpoints of a run compared with the champion, which is still that of its beginning,
        by the exact sign test.

        All have the same share of the run's error, which is fixed before the first one is made: by the union bound it
        covers each of them, also those of a run that ends early.
        """
        champion = (await self.store.outcomes(record.champion)).success
        by_iteration = await self.store.of_run(run.id)
        assert candidate.error_share is not None
        error, iterations = candidate.error_share, sorted(iteration for iteration in by_iteration if iteration)
        if candidate.rung == Rung.IMITATION:
            iterations = iterations[-1:]
        else:
            error /= -(-run.iterations_total // run.stored_request.config.evaluation.every)
        compared = []
        for iteration in iterations:
            outcomes = by_iteration[iteration]
            success = outcomes.success
            evidence = _counts([success[task] - champion[task] for task in champion if task in success])
            is_better = sign_test(evidence["won"], evidence["lost"]) <= error
            compared.append(ComparedCheckpoint(iteration, outcomes.step, is_better, evidence, outcomes.figures))
        return compared


@dataclass(frozen=True, slots=True)
class ComparedCheckpoint:
    """An evaluated checkpoint of a run, compared with the champion on the same validation tasks."""

    iteration: int
    step: int | None
    accepted: bool
    evidence: Mapping[str, int]
    figures: Json

    @property
    def success(self) -> float:
        """Share of the tasks that it solved."""
        return float(self.figures["success"]["mean"])


def accepted_of(compared: Sequence[ComparedCheckpoint], target: float | None) -> ComparedCheckpoint | None:
    """Return the first accepted checkpoint that reaches the target, else the newest accepted one; None if there is
    none. After the first one, how many more a run makes before it is cancelled is a matter of chance."""
    accepted = [checkpoint for checkpoint in compared if checkpoint.accepted]
    reached = (checkpoint for checkpoint in accepted if target is not None and checkpoint.success >= target)
    return next(reached, accepted[-1] if accepted else None)


def _counts(pairs: Sequence[float]) -> dict[str, int]:
    return {"won": sum(pair > 0 for pair in pairs), "lost": sum(pair < 0 for pair in pairs), "tasks": len(pairs)}


def _figures(model: Mapping[str, Json]) -> dict[str, Json]:
    """Return the figures of a model of a report, and what an answer takes."""
    cost, rollouts = model["cost_usd"], model["rollouts"]
    return {
        "success": model["success"],
        "tokens": model["prompt_tokens"] + model["completion_tokens"],
        "seconds": model["seconds_p50"],
        "usd": None if cost is None or not rollouts else cost / rollouts,
    }


def _final(record: ImprovementRecord, job: EvaluationJob) -> dict[str, Json]:
    """Return the success on test tasks by the candidates' numbers, and which evaluations looked at them."""
    assert job.report is not None
    numbers = [str(candidate.number) for candidate in record.accepted.values()]
    success = [model["success"] for model in job.report["models"]]
    return {
        "evaluation_ids": [*record.test_evaluations, job.id],
        "champion": record.improvement.champion,
        "success": dict(zip(numbers, success, strict=True)),
    }
