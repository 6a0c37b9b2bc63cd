"""Starts a release: checks the candidate, fixes the rules and what to expect, and queues its trial."""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from ulid import ULID

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import AgentSession, Promotion, Release, Trajectory
from learnloop_service.app.domain.release_rules import KINDS, Guardrail, ReleaseRules
from learnloop_service.app.domain.release_state import ReleaseState
from learnloop_service.app.errors import InvalidRequest, NotFound
from learnloop_service.app.model_registry.checkpoints import Checkpoints
from learnloop_service.app.model_registry.engine_client import EngineClient
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.model_registry.resolver import UnknownModelName
from learnloop_service.app.operations.promoted_prompt import promoted_prompt, untried
from learnloop_service.app.operations.start.arms_in_memory import check_room
from learnloop_service.app.operations.start.challenge import Challenge, challenge
from learnloop_service.app.operations.start.evaluation import EvaluationStarter, StartedEvaluation
from learnloop_service.app.releases import moves
from learnloop_service.app.releases.expected import outcome_variance
from learnloop_service.app.releases.forecast import USEFUL, forecast_of
from learnloop_service.app.releases.live import LiveRelease
from learnloop_service.app.releases.store import ReleaseStore
from learnloop_service.app.releases.words import too_few
from learnloop_service.app.schemas.releases import NewReleaseRequest, outcome_json
from learnloop_service.training.backends.registry import is_on_engine
from learnloop_service.training.protocol.model_name import ModelName
from learnloop_service.training.statistics.sequential import Rule

_BEFORE = timedelta(days=14)
"""Time before a release whose requests say what is usual."""
_NEEDS_BASELINE = {Guardrail.SLOW: "p95_s", Guardrail.COST: "tokens"}
"""Guardrails that compare with what was usual before, and with which figure."""
_REMEDY = "Wait for its end, or roll it back or promote it first."
_CONFIRMING = "Users are confirming its promotion. Wait for that, or end it by promoting a checkpoint yourself."


@dataclass(frozen=True, slots=True)
class StartedRelease:
    """A release that was accepted, its stable arm, and warnings."""

    row: Release
    stable: Promotion
    warnings: Sequence[str]


SaveReply = Callable[[AsyncSession, StartedRelease], Awaitable[None]]
"""Saves the reply to the request, in the transaction that creates the release."""


@dataclass(frozen=True, slots=True)
class ReleaseStarter:
    """Starts releases."""

    engine: EngineClient
    evaluations: EvaluationStarter

    @property
    def database(self) -> Database:
        """The database with the releases."""
        return self.evaluations.resources.database

    async def start(
        self, project: str, name: str, request: NewReleaseRequest, caller: Caller, save_reply: SaveReply
    ) -> StartedRelease:
        """Start the release.

        Raises NotFound without a promotion, Conflict if a release is live, InvalidRequest or Unavailable.
        """
        stable = await self._stable(ModelName(project, name), caller)
        checkpoints, step, has_run = await self._candidate(stable, request, caller)
        data_dir = self.evaluations.resources.settings.data_dir
        prompt = await promoted_prompt(checkpoints, data_dir, name, step, request)
        baseline = await _baseline(self.database, stable, request)
        guardrails, warnings = _guardrails(request, baseline)
        is_stable = stable.has(checkpoints.model.name, step, prompt)
        if is_on_engine(stable.backend) and is_on_engine(checkpoints.backend):
            current = ModelName(project, stable.model_name, stable.step)
            is_room_needed = checkpoints.model.at(step) != current
            warnings += await check_room(self.engine, checkpoints.model, current.at(None)) if is_room_needed else []
        if is_stable:
            warnings.append(
                f"The candidate is the stable checkpoint itself, {checkpoints.model.at(step)}, with the same prompt: "
                "this release tests the assignment and the guardrails, and it has no trial."
            )
        elif not has_run and not request.skip_trial:
            warnings.append(f"No run has trained {checkpoints.model}, so there are no tasks for a trial.")
        same = {name: getattr(request, name) for name in ("window_hours", "max_days", "at_end", "goal", "worth")}
        rules = ReleaseRules(
            ramp=tuple(request.ramp),
            guardrails=guardrails,
            outcome=outcome_json(request.outcome),
            skip_trial=request.skip_trial or is_stable or not has_run,
            margin=request.margin or 0.0,
            **same,
        )
        estimate, effect = forecast_of(rules, baseline), rules.margin or USEFUL
        if rules.goal != "guardrails" and estimate.units_a_day and estimate.missing(effect) > 0:
            rules = rules.model_copy(update={"goal": "guardrails"})
            warnings.append(too_few(estimate, effect, request.unit))
        candidate = {"backend": checkpoints.backend, "model_name": checkpoints.model.name, "step": step}
        more = {"unit": request.unit, "baseline": baseline, "actor": caller.actor, "started_by": caller.started_by}
        row = _row(stable, rules, prompt=prompt, **candidate, **more)
        try:
            if rules.skip_trial:
                warnings += [] if is_stable else await untried(checkpoints, row)
                return await self._without_trial(StartedRelease(row, stable, warnings), save_reply)
            return await self._with_trial(row, stable, warnings, checkpoints, request, caller, save_reply)
        except IntegrityError as error:
            if "uq_release_project_name_live" not in str(error):
                raise
            raise LiveRelease(str(ModelName(project, name)), None, _REMEDY) from error

    async def _stable(self, promoted: ModelName, caller: Caller) -> Promotion:
        """Return what is promoted to the name. Raises NotFound, or LiveRelease if it has a live release."""
        stable = None
        if caller.sees(promoted.project):
            stable = await Promotions(self.database).current(promoted.project, promoted.name)
        if stable is None:
            raise NotFound(f"No checkpoint is promoted to '{promoted}'.")
        for live, _ in await ReleaseStore(self.database).live(promoted.project, promoted.name):
            raise LiveRelease(str(promoted), live.id, _REMEDY if live.confirming_id is None else _CONFIRMING)
        return stable

    async def _candidate(
        self, stable: Promotion, request: NewReleaseRequest, caller: Caller
    ) -> tuple[Checkpoints, int, bool]:
        """Return the checkpoints of the candidate's model, its step, and whether a run has trained the model. Raises
        InvalidRequest or Unavailable."""
        name = request.model or stable.model_name
        try:
            model = ModelName.parse(name if "/" in name else f"{stable.project}/{name}")
        except ValueError as error:
            raise InvalidRequest(("body", "model"), str(error)) from error
        if model.project != stable.project:
            raise InvalidRequest(("body", "model"), f"The candidate must be a model of the project {stable.project}.")
        named = ModelName(model.project, model.name)
        try:
            models = self.evaluations.models
            resolved = await models.model(caller, named)
            checkpoints = Checkpoints(self.database, self.engine, models.connect, named, resolved.backend)
            steps = await checkpoints.steps()
        except UnknownModelName as error:
            raise InvalidRequest(("body", "model"), str(error)) from error
        step = request.step if model.step is None else model.step
        if request.model is None and step is None:
            step = stable.step
        if not steps or step not in (None, *steps):
            field = "model" if request.step is None else "step"
            raise InvalidRequest(("body", field), f"{named} has no checkpoint {'yet' if step is None else step}.")
        return checkpoints, max(steps) if step is None else step, resolved.run is not None

    async def _without_trial(self, started: StartedRelease, save_reply: SaveReply) -> StartedRelease:
        async with self.database.begin() as tx:
            tx.add(started.row)
            await tx.flush()
            await moves.start_traffic(tx, started.row, started.row.actor, {"trial": None})
            await save_reply(tx, started)
        return started

    async def _with_trial(
        self,
        row: Release,
        stable: Promotion,
        warnings: list[str],
        checkpoints: Checkpoints,
        request: NewReleaseRequest,
        caller: Caller,
        save_reply: SaveReply,
    ) -> StartedRelease:
        started = StartedRelease(row, stable, warnings)

        async def save(tx: AsyncSession, trial: StartedEvaluation) -> None:
            row.evaluation_id = trial.job.id
            warnings.extend(trial.warnings)
            tx.add(row)
            await tx.flush()
            await tx.refresh(row)
            await save_reply(tx, started)

        rule, most = Rule(), request.trial_scenarios
        terms = Challenge(row.step, row.prompt, row.name, row.name, rule, most, None, None, None, row.id)
        await challenge(self.evaluations, checkpoints, terms, caller, save)
        return started


def _row(stable: Promotion, rules: ReleaseRules, **more: Any) -> Release:
    """Return the row of a release that begins, of the promoted name of `stable`."""
    return Release(
        id=str(ULID()),
        project=stable.project,
        name=stable.name,
        state=ReleaseState.TRIAL,
        version=1,
        salt=secrets.token_bytes(16),
        promotion_id=stable.id,
        stage=0,
        share=rules.ramp[0],
        rules=rules.model_dump(mode="json"),
        **more,
    )


def _guardrails(request: NewReleaseRequest, baseline: dict[str, Any]) -> tuple[dict[Guardrail, float], list[str]]:
    """Return the tolerances of the guardrails to watch, and warnings about those that cannot be.

    Raises InvalidRequest if one that was asked for cannot be watched.
    """
    tolerances: dict[Guardrail, float] = {}
    warnings = []
    for name, kind in KINDS.items():
        tolerance = request.guardrails.get(name, kind.tolerance)
        if tolerance is None:
            continue
        figure = _NEEDS_BASELINE.get(name)
        if figure is None or baseline[figure] is not None:
            tolerances[name] = tolerance
            continue
        why = f"No answer of the stable checkpoint to /ask in the last {_BEFORE.days} days says what is usual"
        if name in request.guardrails:
            raise InvalidRequest(("body", "guardrails", name), f"{why}; leave it out with null.")
        warnings.append(f"{why}, so the guardrail {name} is not watched.")
    return tolerances, warnings


async def _baseline(database: Database, stable: Promotion, request: NewReleaseRequest) -> dict[str, Any]:
    """Return what the stable checkpoint did before: `p95_s` and mean sampled `tokens` of its answers to `/ask` (None
    without any), `users`: the number of units of the name, and the `variance` that a forecast leaves of outcomes."""
    promoted, since = str(ModelName(stable.project, stable.name)), func.now() - _BEFORE
    questions = (Trajectory.asked_as == promoted, Trajectory.kind == "ask", Trajectory.started_at > since)
    has_prompt = Trajectory.prompt_sha256.is_not_distinct_from(stable.prompt_sha256)
    usual = select(
        func.percentile_cont(0.95).within_group(Trajectory.seconds),
        func.avg(Trajectory.completion_tokens),
    ).where(*questions, Trajectory.step == stable.step, has_prompt)
    named = or_(AgentSession.asked_model == promoted, AgentSession.asked_model == stable.name)
    opened = (AgentSession.project == stable.project, named, AgentSession.opened_at > since)
    if request.unit == "session":
        units = select(func.count()).select_from(AgentSession).where(*opened)
    else:
        users = select(Trajectory.user_hash).where(*questions).union(select(AgentSession.user_hash).where(*opened))
        units = select(func.count(users.subquery().c.user_hash))
    async with database() as tx:
        p95_s, tokens = (await tx.execute(usual)).one()
        unit_count = (await tx.execute(units)).scalar_one()
        rule, window = outcome_json(request.outcome), timedelta(hours=request.window_hours)
        variance = await outcome_variance(tx, ModelName(stable.project, stable.name), rule, window)
    return {
        "p95_s": p95_s,
        "tokens": None if tokens is None else float(tokens),
        "users": unit_count,
        "variance": variance,
        "days": _BEFORE.days,
    }
