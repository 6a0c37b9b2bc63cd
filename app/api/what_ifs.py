"""What-ifs: continue a recorded rollout from one of its turns, and see which turn decided it."""

from collections.abc import Mapping

from ulid import ULID

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentQueries, CurrentService, TrajectoryId
from learnloop_service.app.api.engine import CurrentEvaluations
from learnloop_service.app.api.evaluations import save_evaluation_reply
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.presentation import evaluation_accepted, evaluation_figures
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.db.tables import EvaluationJob, Trajectory
from learnloop_service.app.evaluations.store import EvaluationStore
from learnloop_service.app.evaluations.what_ifs import StateValue, turn_values_of
from learnloop_service.app.operations.start.what_if import WhatIfStarter
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.evaluations import EvaluationAccepted
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.what_ifs import TurnCredit, TurnValue, TurnValues, WhatIfBrief, WhatIfRequest
from learnloop_service.training.statistics.shares import wilson
from learnloop_service.training.statistics.turn_values import Credit, TurnVerdict, credits, sentence, verdict

router = keyed_router("trajectories")


@router.post("/trajectories/{trajectory_id}/what-if", status_code=202)
async def post_what_if(
    queries: CurrentQueries,
    evaluations: CurrentEvaluations,
    caller: CurrentCaller,
    trajectory_id: TrajectoryId,
    request: WhatIfRequest,
) -> EvaluationAccepted:
    """Continue a recorded rollout from a turn on, in the background.

    The turns before it are replayed: their tool calls are made again and compared with the recorded ones. The
    continuations are an evaluation; poll it until it has ended.
    """
    row = await queries.trajectory(trajectory_id)
    started = await WhatIfStarter(evaluations).start(str(ULID()), row, request, caller, save_evaluation_reply)
    return evaluation_accepted(started)


@router.get("/trajectories/{trajectory_id}/what-ifs")
async def list_what_ifs(
    service: CurrentService, queries: CurrentQueries, trajectory_id: TrajectoryId, paging: ById
) -> Page[WhatIfBrief]:
    """List the what-ifs of a rollout, newest first."""
    await queries.trajectory(trajectory_id)
    store = EvaluationStore(service.database)
    jobs = await store.listed(before=paging.cursor, limit=paging.fetched, trajectory_id=trajectory_id)
    return paging.page(jobs, _brief, lambda row: row.id)


@router.get("/trajectories/{trajectory_id}/turn-values")
async def get_turn_values(service: CurrentService, queries: CurrentQueries, trajectory_id: TrajectoryId) -> TurnValues:
    """Get which turn decided a rollout.

    Shows how often continuations succeed from before each of its turns, and by how much each turn changed that.
    """
    row = await queries.trajectory(trajectory_id)
    return _turn_values(row, await turn_values_of(service.database, trajectory_id))


def _brief(job: EvaluationJob) -> WhatIfBrief:
    """Return a what-if as an item of a list."""
    what_if = job.request["what_if"]
    more = {name: what_if[name] for name in ("turns", "search")} | {"edited": what_if["edit"] is not None}
    return WhatIfBrief.model_validate(evaluation_figures(job) | more)


def _turn_values(row: Trajectory, values: Mapping[int, StateValue]) -> TurnValues:
    """Return what the values of the states before a rollout's turns say."""
    sampled = {turn: value.sampled for turn, value in values.items()}
    turn_verdict = TurnVerdict(None, None, None)
    turn_credits: list[TurnCredit] = []
    if row.success is not None:
        turn_verdict = verdict(sampled, row.turns, row.success)
        turn_credits = [_turn_credit(credit) for credit in credits(sampled, row.turns, row.success)]
    return TurnValues(
        trajectory_id=row.id,
        turns=row.turns,
        success=row.success,
        values=[_turn_value(turn, value) for turn, value in values.items()],
        credits=turn_credits,
        decisive=next(
            (credit for credit in turn_credits if turn_verdict.decisive and credit.turn == turn_verdict.decisive.turn),
            None,
        ),
        missing=turn_verdict.missing,
        missing_before=turn_verdict.missing_before(row.turns),
        text=sentence(turn_verdict, sampled, row.turns, row.success),
    )


def _turn_value(turn: int, value: StateValue) -> TurnValue:
    share, count = value.sampled.share, value.sampled.count
    low, high = wilson(share, count)
    success = IntervalOut(mean=share, low=low, high=high)
    return TurnValue(turn=turn, count=count, success=success, reward=value.reward)


def _turn_credit(credit: Credit) -> TurnCredit:
    return TurnCredit(turn=credit.turn, points=IntervalOut.points(credit.points, credit.low, credit.high))
