"""Starts a rejudging: stored rollouts of a run are scored by another judge, rubric or code. The run stays as it was."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist, fmean, stdev

from sqlalchemy import select

from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import EvaluationJob, JudgeCall, Run
from learnloop_service.app.domain.stored_evaluation import Rejudge, RejudgingEvaluation
from learnloop_service.app.domain.stored_request import Choice
from learnloop_service.app.errors import Conflict, InvalidRequest
from learnloop_service.app.evaluations.judging_code import judging_code
from learnloop_service.app.evaluations.rejudgings import RejudgingStore
from learnloop_service.app.listed_models import ListedModels, NotedModels
from learnloop_service.app.operations.fitting_judges import examined, unfit
from learnloop_service.app.operations.start.evaluation import (
    Basis,
    EvaluationStarter,
    SaveReply,
    StartedEvaluation,
    check_judge,
)
from learnloop_service.app.operations.start.run_plan import judge_with_defaults
from learnloop_service.app.schemas.evaluations import EvaluationRequest
from learnloop_service.app.schemas.rejudgings import ExpectedCost, RejudgeRequest
from learnloop_service.environment.registry import traits
from learnloop_service.environment.wording import counted

_RANGE = 0.9
_MOST_SCORES = 200_000
"""Maximum number of scores that a rejudging gives."""
_MOST_CALLS = 2_000
"""Newest calls of a judge model that a prediction is based on."""
_MOST_EVALUATIONS = 20
"""Newest evaluations by the judge that it is based on, too."""


@dataclass(frozen=True, slots=True)
class Planned:
    """What a rejudging would do."""

    rejudge: Rejudge
    groups: int
    environment: Choice
    judge: Choice
    models: NotedModels
    """The models that the judge asked for when it was built."""
    cost: ExpectedCost

    @property
    def verdicts(self) -> int:
        """Number of verdicts."""
        return self.groups * self.rejudge.repeats


@dataclass(frozen=True, slots=True)
class RejudgingStarter:
    """Starts rejudgings."""

    evaluations: EvaluationStarter

    async def plan(self, run: Run, request: RejudgeRequest) -> Planned:
        """Return what the rejudging would do. Raises InvalidRequest, and Conflict if the run has no such rollouts."""
        if (deleted_at := run.pruned.get("trajectories")) is not None:
            raise Conflict(
                f"The trajectories of run {run.id} were deleted at {deleted_at} because of their age "
                "(LEARNLOOP_KEEP_TRAJECTORIES_DAYS), so they cannot be judged again."
            )
        stored, database = run.stored_request, self.evaluations.resources.database
        judge = stored.judge if request.judge is None else judge_with_defaults(request.judge, stored.judge.name)
        store = RejudgingStore(database)
        newest = await store.last_iteration(run) or 0
        rejudge = Rejudge(
            run_id=run.id,
            kinds=tuple(dict.fromkeys(request.kinds)),
            first=request.iterations.first,
            last=newest if request.iterations.last is None else min(request.iterations.last, newest),
            repeats=request.repeats,
            rollouts=0,
            code=judging_code(judge.name),
        )
        groups = await store.groups(rejudge, stored.config)
        if not groups:
            kinds, places = " or ".join(rejudge.kinds), f"{rejudge.first} to {rejudge.last}"
            raise Conflict(f"Run {run.id} has no saved {kinds} rollouts in iterations {places}.")
        rollouts = sum(len(group.rows) for group in groups)
        if rollouts * rejudge.repeats > _MOST_SCORES:
            scores = f"{counted(rollouts, 'rollout')} in {counted(rejudge.repeats, 'repeat')}"
            message = f"{scores} are more than {_MOST_SCORES:,} scores."
            raise InvalidRequest(("body", "iterations"), f"{message} Judge fewer iterations at a time.")
        rejudge = rejudge.model_copy(update={"rollouts": rollouts})
        models = NotedModels(ListedModels(self.evaluations.resources.settings))
        built = check_judge(judge, models)
        if (reason := unfit(built, await examined(database, run.id))) is not None:
            raise InvalidRequest(("body", "judge"), f"The judge {judge.name} fits no rollout of this run: {reason}.")
        environment = _environment(stored.environment, request)
        cost = await _expected(database, run, judge, len(groups) * rejudge.repeats)
        return Planned(rejudge, len(groups), environment, judge, models, cost)

    async def start(
        self, id: str, run: Run, request: RejudgeRequest, planned: Planned, caller: Caller, save_reply: SaveReply
    ) -> StartedEvaluation:
        """Queue the rejudging. Raises InvalidRequest, Conflict or Unavailable."""
        return await self.evaluations.queue(
            id,
            EvaluationRequest(run_id=run.id, budget=request.budget),
            caller,
            save_reply,
            replace(Basis.of_run(run), environment=planned.environment, judge=planned.judge),
            run.model_project,
            RejudgingEvaluation,
            planned.models,
            rejudge=planned.rejudge,
            scenarios=planned.groups,
        )


def _environment(choice: Choice, request: RejudgeRequest) -> Choice:
    """Return the environment with the request's settings. Raises InvalidRequest for one that an agent would see."""
    allowed = traits(choice.name).reward_settings
    for name in request.environment:
        if name not in allowed:
            which = ", ".join(sorted(allowed)) or "none"
            raise InvalidRequest(
                ("body", "environment", name),
                f"{name} can decide what an agent sees, and the stored rollouts have seen it otherwise. Settings of "
                f"{choice.name} that decide the reward only: {which}.",
            )
    return Choice(name=choice.name, config={**choice.config, **request.environment})


async def _expected(database: Database, run: Run, judge: Choice, verdicts: int) -> ExpectedCost:
    """Return what that many verdicts cost, by earlier calls of the judge."""
    query = (
        select(JudgeCall.cost_usd)
        .join(Run, Run.id == JudgeCall.run_id)
        .where(Run.model_project == run.model_project, JudgeCall.judge == judge.name)
        .where(JudgeCall.cached.is_(False), JudgeCall.error.is_(None))
        .order_by(JudgeCall.id.desc())
        .limit(_MOST_CALLS)
    )
    if (model := judge.config.get("model")) is not None:
        query = query.where(JudgeCall.model == model)
    sums = (
        select(EvaluationJob.judge)
        .where(EvaluationJob.project == run.model_project, EvaluationJob.request["judge"]["name"].astext == judge.name)
        .order_by(EvaluationJob.id.desc())
        .limit(_MOST_EVALUATIONS)
    )
    async with database() as tx:
        prices = [*(await tx.execute(query)).scalars()]
        for usage in (await tx.execute(sums)).scalars():  # of evaluations only the sums are kept
            if requests := int(usage.get("requests") or 0):
                mean = None if usage.get("usd") is None else usage["usd"] / requests
                prices += [mean] * min(requests, _MOST_CALLS)
    return expected_cost(prices, verdicts)


def expected_cost(prices: Sequence[float | None], verdicts: int) -> ExpectedCost:
    """Return what `verdicts` verdicts cost if each costs what one of these did, with the range of 90% of such sums.

    The range is a normal approximation; the uncertainty of the mean is in it.
    """
    known_prices = [price for price in prices if price is not None]
    if not prices:
        reason = "No verdict of this judge by a model is recorded. A judge without a model costs nothing."
        return ExpectedCost(usd=None, low=None, high=None, reason=reason)
    if len(known_prices) < len(prices):
        return ExpectedCost(usd=None, low=None, high=None, reason="The price of its model is not known.")
    mean, count = fmean(known_prices), len(known_prices)
    spread = stdev(known_prices) if count > 1 else mean
    half = NormalDist().inv_cdf((1 + _RANGE) / 2) * spread * sqrt(verdicts + verdicts**2 / count)
    total = mean * verdicts
    reason = f"In the project {counted(count, 'verdict')} of this judge cost ${mean:.6f} each on average."
    return ExpectedCost(usd=total, low=max(0.0, total - half), high=total + half, reason=reason)
