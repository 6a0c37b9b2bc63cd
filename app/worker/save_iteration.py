"""Saves the result of an iteration as rows, in one transaction."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import cast, delete, insert, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.claims.lease import Lease, LeaseLost
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import (
    Checkpoint,
    Evaluation,
    Iteration,
    Journal,
    JudgeCall,
    Reflection,
    RolloutRecord,
    Run,
    Trajectory,
)
from learnloop_service.app.domain.event_types import EventType
from learnloop_service.app.domain.stored_request import DiagnosisRule, StoredRequest
from learnloop_service.app.events.log import append
from learnloop_service.app.runs import diagnoses, ledger
from learnloop_service.app.runs.resume_point import evaluated_successes
from learnloop_service.app.worker.iteration_event import iteration_data
from learnloop_service.environment.wording import counted
from learnloop_service.judges.base import JudgeCall as JudgeCallResult
from learnloop_service.training.collapse import pause_reason
from learnloop_service.training.diagnosis.collapses import rolled_out
from learnloop_service.training.diagnosis.diagnose import diagnose
from learnloop_service.training.diagnosis.diagnosis import Diagnosis, DiagnosisSettings
from learnloop_service.training.diagnosis.facts import Facts
from learnloop_service.training.journal import ROLLOUT, SERVED_RATIOS, SERVED_USED
from learnloop_service.training.loop import served_answers as served
from learnloop_service.training.no_signal import no_signal_of
from learnloop_service.training.prompt import UNDELIVERED_PARTS
from learnloop_service.training.rollout.histories import messages_of
from learnloop_service.training.rollout.rollout import sampled_tokens
from learnloop_service.training.scoring import successes
from learnloop_service.training.statistics.difference import difference
from learnloop_service.training.types import Evaluation as EvaluationResult
from learnloop_service.training.types import IterationResult, Rollout, ScoredRollout

Row = dict[str, Any]
Baseline = Mapping[tuple[str, str], Mapping[str, float]]
"""Success by scenario of the baseline's evaluations, by split and mode."""
_ROWS_AT_ONCE = 16
"""Trajectories per insert. Between inserts the event loop serves other requests."""


@dataclass(frozen=True, slots=True)
class IterationRows:
    """An iteration as rows. Building them takes a while, so it is not done on the API's event loop."""

    result: IterationResult
    iteration: Row
    evaluations: list[Row]
    trajectories: list[Row]
    judge_calls: list[Row]
    reflection: Row | None
    ledger: Sequence[ledger.NewLedgerEntry]
    event: Row
    """Data of the iteration's event."""
    keep_rollouts: bool
    """Whether the journal's rollouts are archived."""
    diagnoses: Sequence[Diagnosis]
    """Diagnoses of the run after this iteration."""
    on_diagnosis: DiagnosisRule
    collapse_pause: str | None
    """Why on_collapse pauses the run after this iteration."""


def iteration_rows(
    run: Run,
    request: StoredRequest | None,
    result: IterationResult,
    used: Sequence[ledger.NewLedgerEntry],
    facts: Sequence[Facts] = (),
    baseline: Baseline | None = None,
) -> IterationRows:
    """Convert an iteration to rows. `used` is what its phases used; `facts` are those of the iterations up to it;
    `baseline` is the run's, once it is saved.

    Without `request` nothing is archived and nothing diagnosed.
    """
    run_diagnoses = (
        diagnose(facts, DiagnosisSettings(request.config, run.base_model, run.usual_learning_rate)) if request else []
    )
    return IterationRows(
        result,
        _iteration_row(run.id, result) | {"facts": facts[-1].dump() if facts else None},
        [_evaluation_row(run.id, result, evaluation, baseline or {}) for evaluation in result.evaluations],
        list(_trajectory_rows(run, result)),
        [{"run_id": run.id, "iteration": result.iteration, **asdict(call)} for call in _judge_calls(result)],
        _reflection_row(run.id, result),
        used,
        iteration_data(result),
        keep_rollouts=request is not None and request.keep_rollouts,
        diagnoses=run_diagnoses,
        on_diagnosis=request.on_diagnosis if request else DiagnosisRule(),
        collapse_pause=(
            pause_reason(rolled_out(facts), result.iteration, request.config.on_collapse) if request else None
        ),
    )


async def saved_baseline(database: Database, run_id: str) -> Baseline:
    """Read the successes of the baseline's evaluations."""
    async with database() as tx:
        return await evaluated_successes(tx, run_id, 0)


async def save_iteration(database: Database, lease: Lease[Run], rows: IterationRows) -> None:
    """Save an iteration. A second call with the same rows changes nothing. Raises LeaseLost."""
    run_id, iteration = lease.id, rows.result.iteration
    async with database.begin() as tx:
        in_a_row = await _advance(tx, lease, rows.result)
        if in_a_row is None:
            return
        await tx.execute(insert(Iteration), [rows.iteration])
        if rows.evaluations:
            await tx.execute(insert(Evaluation), rows.evaluations)
        for start in range(0, len(rows.trajectories), _ROWS_AT_ONCE):
            await tx.execute(insert(Trajectory), rows.trajectories[start : start + _ROWS_AT_ONCE])
        if rows.judge_calls:
            await tx.execute(insert(JudgeCall), rows.judge_calls)
        if rows.reflection is not None:
            await tx.execute(insert(Reflection), [rows.reflection])
        await ledger.save(tx, run_id, iteration, rows.ledger, whole=True)
        await _save_checkpoint(tx, run_id, rows.result)
        await _close_journal(tx, run_id, iteration, keep_rollouts=rows.keep_rollouts)
        await append(tx, run_id, EventType.ITERATION_COMPLETED, lease.actor, rows.event, iteration=iteration)
        if served.ANSWERS in rows.result.train_metrics:
            await _note_answers(tx, lease, rows.result)
        if (cause := no_signal_of(rows.result.groups)) is not None:
            data = {
                "cause": cause,
                "message": cause.explanation,
                "groups": len(rows.result.groups),
                "in_a_row": in_a_row,
            }
            await append(tx, run_id, EventType.ITERATION_NO_SIGNAL, lease.actor, data, iteration=iteration)
        if rows.diagnoses:
            await diagnoses.save(tx, lease, iteration, rows.diagnoses, rows.on_diagnosis, rows.collapse_pause)


async def _advance(tx: AsyncSession, lease: Lease[Run], result: IterationResult) -> int | None:
    """Advance the run's counters past this iteration. Returns None if that was already done (a reply was lost).

    Otherwise returns how many iterations in a row, up to this one, had no signal. Raises LeaseLost.
    """
    cause = no_signal_of(result.groups)
    rollouts = sum(len(group.rollouts) for group in result.groups)
    rollouts += sum(len(evaluation.rollouts) for evaluation in result.evaluations)
    rollouts += result.reflection is not None
    calls = list(_judge_calls(result))
    advance = (
        update(Run)
        .where(lease.held(), Run.next_iteration == result.iteration)
        .values(
            next_iteration=result.iteration + 1,
            claims=0,
            step=result.step,
            best_step=result.best_step,
            no_signal=cause,
            no_signal_iterations=0 if cause is None else Run.no_signal_iterations + 1,
            rollouts=Run.rollouts + rollouts,
            prompt_tokens=Run.prompt_tokens + result.timing.prompt_tokens,
            completion_tokens=Run.completion_tokens + result.timing.completion_tokens,
            judge_prompt_tokens=Run.judge_prompt_tokens + sum(call.prompt_tokens for call in calls),
            judge_completion_tokens=Run.judge_completion_tokens + sum(call.completion_tokens for call in calls),
            judge_cost_usd=Run.judge_cost_usd + sum(call.cost_usd or 0.0 for call in calls),
        )
        .returning(Run.no_signal_iterations)
    )
    if (in_a_row := (await tx.execute(advance)).scalar_one_or_none()) is not None:
        return in_a_row
    saved = select(Run.id).where(lease.held(), Run.next_iteration > result.iteration)
    if (await tx.execute(saved)).scalar_one_or_none() is None:
        raise LeaseLost(lease, f"iteration {result.iteration} is not the next one to save")
    return None


async def _note_answers(tx: AsyncSession, lease: Lease[Run], result: IterationResult) -> None:
    """Report served answers that the iteration was to learn from and could not, because its weights cannot be repeated.
    After the last iteration, say what held-out answers show."""
    metrics, named = result.train_metrics, list(result.left_out)
    events: dict[EventType, Row] = {
        EventType.SERVED_WITHDRAWN: {"count": int(metrics[served.WITHDRAWN])},
        EventType.JOURNAL_DAMAGED: {"damaged": named, "dropped": named},
    }
    for type, data in events.items():
        if any(data.values()):
            await append(tx, lease.id, type, lease.actor, data, iteration=result.iteration)
            why = f"Iteration {result.iteration} lacked answers that were deleted, withdrawn or damaged."
            verdict = {"reproducible": False, "reproducible_reason": why}
            await tx.execute(update(Run).where(lease.held()).values(verdict))
    shown = f"{counted(int(metrics[served.HELD_OUT]), 'answer')} to users that it did not train on"
    note = f"{shown} cannot show whether it gained."
    if served.GAIN in metrics:
        gain, low, high = (f"{100 * metrics[name]:+.1f}" for name in (served.GAIN, served.GAIN_LOW, served.GAIN_HIGH))
        note = f"On {shown} the gain is estimated at {gain} points (90% interval {low} to {high})."
        note += f" Each of them moved by {metrics[served.MOVED]:.2f} nats."
    if served.TOO_FAR in metrics:
        used = f"The run stopped after {result.step - 1} of {result.iteration} steps"
        note += f" {used}: the next one moved answers by {metrics[served.TOO_FAR]:.2f} nats in all, which is too far."
    ended = update(Run).where(lease.held(), Run.iterations_total == result.iteration)
    await tx.execute(ended.values(warnings=Run.warnings.op("||")(cast([note], JSONB))))


async def _close_journal(tx: AsyncSession, run_id: str, iteration: int, *, keep_rollouts: bool) -> None:
    """Delete the iteration's journal. With `keep_rollouts`, its rollouts and what it notes of served answers move to
    the archive, byte for byte."""
    if keep_rollouts:
        names = [column.name for column in RolloutRecord.__table__.columns]
        is_kept = or_(Journal.name.startswith(f"{ROLLOUT}/"), Journal.name.in_((SERVED_USED, SERVED_RATIOS)))
        rollouts = select(*(getattr(Journal, name) for name in names)).where(
            Journal.run_id == run_id, Journal.iteration == iteration, is_kept
        )
        await tx.execute(insert(RolloutRecord).from_select(names, rollouts))
    await tx.execute(delete(Journal).where(Journal.run_id == run_id, Journal.iteration <= iteration))


async def _save_checkpoint(tx: AsyncSession, run_id: str, result: IterationResult) -> None:
    """Save the iteration's checkpoint, unless its step already has one, and mark the run's best one."""
    success = next(
        (e.success for e in result.evaluations if (e.split, e.mode, e.step) == ("validation", "sampled", result.step)),
        None,
    )
    if await tx.get(Checkpoint, (run_id, result.step)) is None:
        row = {"run_id": run_id, "step": result.step, "iteration": result.iteration, "model": result.model}
        await tx.execute(insert(Checkpoint), [row | {"success": success, "is_best": False}])
    change = update(Checkpoint).where(Checkpoint.run_id == run_id)
    await tx.execute(change.values(is_best=Checkpoint.step == result.best_step))
    best_success = (
        select(Checkpoint.success)
        .where(Checkpoint.run_id == run_id, Checkpoint.step == result.best_step)
        .scalar_subquery()
    )
    await tx.execute(update(Run).where(Run.id == run_id).values(best_success=best_success))


def _iteration_row(run_id: str, result: IterationResult) -> Row:
    rewards = result.rewards
    return {
        "run_id": run_id,
        "iteration": result.iteration,
        "step": result.step,
        "best_step": result.best_step,
        "reward_mean": rewards.mean,
        "reward_median": rewards.median,
        "reward_min": rewards.min,
        "reward_max": rewards.max,
        "reward_count": rewards.count,
        "success": result.success,
        "malformed": result.malformed,
        "failed_rollouts": result.failed_rollouts,
        "lost_rollouts": dict(result.lost_rollouts),
        "skipped_groups": dict(result.skipped_groups),
        "no_signal": no_signal_of(result.groups),
        "train_metrics": dict(result.train_metrics),
        "timing": asdict(result.timing),
        "sampled_step": result.sampled_step,
        "staleness": result.staleness,
    }


def _judge_calls(result: IterationResult) -> Iterator[JudgeCallResult]:
    for judged in (*result.groups, *result.evaluations, *([result.reflection] if result.reflection else ())):
        yield from judged.judge_calls


def _reflection_row(run_id: str, result: IterationResult) -> Row | None:
    if result.reflection is None:
        return None
    return {
        "run_id": run_id,
        "iteration": result.iteration,
        "state": dict(result.reflection.state),
        "trajectory_id": result.reflection.showcase.rollout.id,
    }


def _evaluation_row(run_id: str, result: IterationResult, evaluation: EvaluationResult, baseline: Baseline) -> Row:
    before = baseline.get((evaluation.split, evaluation.mode), {})
    change = difference(before, successes(evaluation.rollouts))
    return {
        "run_id": run_id,
        "iteration": result.iteration,
        "split": evaluation.split,
        "mode": evaluation.mode,
        "step": evaluation.step,
        "scenarios": evaluation.scenarios,
        "success": evaluation.success,
        "mean_reward": evaluation.mean_reward,
        "malformed": evaluation.malformed,
        "turns": evaluation.turns,
        "difference": None if change is None else asdict(change),
    }


def _trajectory_rows(run: Run, result: IterationResult) -> Iterator[Row]:
    model = f"{run.model_project}/{run.model_name}"
    prompt = run.stored_request.prompt
    common = {
        "run_id": run.id,
        "iteration": result.iteration,
        "model": model,
        "prompt_sha256": prompt and prompt.sha256,
    }
    for group in result.groups:
        for scored in group.rollouts:
            yield common | {"kind": "train", "mode": "sampled", "step": result.sampled_step} | scored_row(scored)
    for evaluation in result.evaluations:
        for scored in evaluation.rollouts:
            yield (
                common | {"kind": "evaluation", "mode": evaluation.mode, "step": evaluation.step} | scored_row(scored)
            )
    if result.reflection is not None:
        yield (
            common
            | {"kind": "showcase", "mode": "greedy", "step": result.step}
            | scored_row(result.reflection.showcase)
        )


def scored_row(scored: ScoredRollout) -> Row:
    """Return the columns of a rollout, its verdict, its advantage and how its scenario was chosen."""
    names = ("advantage", "why_no_success", "inclusion", "replaces")
    return rollout_row(scored.rollout) | verdict_row(scored) | {name: getattr(scored, name) for name in names}


def verdict_row(scored: ScoredRollout) -> Row:
    """Return the columns of a verdict, without the advantage, which belongs to training."""
    return {
        "score": scored.score.value,
        "score_explanation": scored.score.explanation,
        "score_parts": dict(scored.score.parts),
        "reward": scored.reward,
        "reward_parts": dict(scored.reward_parts),
        "success": scored.success,
    }


def rollout_row(rollout: Rollout) -> Row:
    """Return the columns of a rollout without its verdict."""
    scenario, trajectory = rollout.scenario, rollout.trajectory
    metrics = trajectory.metrics
    return {
        "id": rollout.id,
        "split": scenario.split,
        "scenario_id": scenario.id,
        "scenario": {"task": dict(scenario.task), "reference": dict(scenario.reference)},
        "messages": messages_of(trajectory),
        "tokens": sampled_tokens(rollout),
        "tools": list(trajectory.tools or []),
        "additional_histories": [
            {"messages": messages_of(history), "tools": list(history.tools or [])}
            for history in trajectory.additional_histories
        ],
        "undelivered_parts": metrics.get(UNDELIVERED_PARTS),
        "outcome": dict(rollout.outcome),
        "error": rollout.error,
        "failure": None if rollout.failure is None else rollout.failure.kind,
        "turns": int(metrics.get("turns", 0)),
        "prompt_tokens": int(metrics.get("prompt_tokens", 0)),
        "completion_tokens": int(metrics.get("completion_tokens", 0)),
        "seconds": rollout.seconds,
        "started_at": datetime.fromtimestamp(rollout.started_at, UTC),
    }
