"""Trajectories, the records of rollouts: short lists, and single ones with all details."""

from collections.abc import Coroutine, Sequence
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from sqlalchemy import Row

from learnloop_service.app.api.dependencies import (
    NO_NUL,
    CurrentCaller,
    CurrentHeavyReads,
    CurrentJudging,
    CurrentQueries,
    CurrentScoring,
    CurrentService,
    CurrentSettings,
    RunId,
    ScenarioId,
    TrajectoryId,
)
from learnloop_service.app.api.pages import ByNumber
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.db.database import Database
from learnloop_service.app.operations.judge_questions import questions_about
from learnloop_service.app.operations.likelihood import likelihood
from learnloop_service.app.runs.finished_rollouts import finished_rollouts
from learnloop_service.app.runs.outcomes import outcomes
from learnloop_service.app.runs.queries import RunQueries
from learnloop_service.app.runs.rollout_filters import conditions
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.likelihood import Likelihood, LikelihoodRequest
from learnloop_service.app.schemas.trajectories import (
    FinishedRollouts,
    JudgeQuestionOut,
    JudgeQuestions,
    Kind,
    Mode,
    Outcomes,
    SampledTokens,
    Split,
    TrajectoryBrief,
    TrajectoryOut,
)

router = keyed_router("trajectories")

Iterations = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**31)]] | None,
    Query(max_length=100, description="Only rollouts of this iteration, from 0. Can be repeated. Default: all"),
]
Ending = Annotated[
    str | None,
    Query(
        max_length=100,
        pattern=NO_NUL,
        description="Only rollouts that ended so: `finish` of their outcome, or `failed`. Default: all",
    ),
]
RewardPart = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=NO_NUL,
        description="Only rollouts whose reward has a part of this name other than 0. Default: all",
    ),
]
CalledTool = Annotated[
    str | None,
    Query(max_length=200, pattern=NO_NUL, description="Only rollouts that called this tool. Default: all"),
]
Text = Annotated[
    str | None,
    Query(
        min_length=2,
        max_length=200,
        pattern=NO_NUL,
        description="Only rollouts with this text in a message or a tool call, in any case. Default: all",
    ),
]


@router.get("/runs/{run_id}/trajectories")
async def list_trajectories(
    service: CurrentService,
    queries: CurrentQueries,
    heavy_reads: CurrentHeavyReads,
    caller: CurrentCaller,
    run_id: RunId,
    paging: ByNumber,
    iteration: Iterations = None,
    scenario_id: ScenarioId = None,
    split: Annotated[Split | None, Query(description="Only rollouts of this split. Default: all")] = None,
    mode: Annotated[Mode | None, Query(description="Only sampled, or only greedy rollouts. Default: both")] = None,
    kind: Annotated[Kind | None, Query(description="Only rollouts made for this. Default: all")] = None,
    success: Annotated[
        bool | None, Query(description="Only rollouts that did their task, or only those that did not. Default: all")
    ] = None,
    end: Ending = None,
    part: RewardPart = None,
    tool: CalledTool = None,
    text: Text = None,
) -> Page[TrajectoryBrief]:
    """List the trajectories of a run, oldest first. Their messages are left out.

    Values of a task or an outcome are cut after 4,000 characters, and are texts then.
    """
    await queries.require_run(run_id)

    def read(database: Database) -> Coroutine[Any, Any, Sequence[Row[Any]]]:
        return RunQueries(database).trajectories(
            run_id,
            after=paging.after(-1),
            limit=paging.fetched,
            iteration=iteration,
            scenario_id=scenario_id,
            split=split,
            mode=mode,
            kind=kind,
            where=conditions(success=success, end=end, part=part, tool=tool, text=text),
        )

    # Nothing but the rows leads to these; what is in messages takes seconds to find in a long run.
    is_heavy = any(condition is not None for condition in (end, part, tool, text))
    rows = await (heavy_reads.do(caller.namespace, read) if is_heavy else read(service.database))
    return paging.page(rows, TrajectoryBrief.of, lambda row: row.seq)


@router.get("/runs/{run_id}/rollouts")
async def list_finished_rollouts(
    service: CurrentService,
    queries: CurrentQueries,
    run_id: RunId,
    limit: Annotated[int, Query(ge=1, le=50, description="Maximum number of rollouts to return")] = 20,
) -> FinishedRollouts:
    """List the newest finished rollouts of iterations that are not saved yet."""
    await queries.require_run(run_id)
    return await finished_rollouts(service.database, run_id, limit)


@router.get("/runs/{run_id}/outcomes")
async def list_outcomes(
    heavy_reads: CurrentHeavyReads,
    queries: CurrentQueries,
    caller: CurrentCaller,
    run_id: RunId,
    kind: Annotated[Kind, Query(description="Only rollouts made for this")] = "train",
) -> Outcomes:
    """Count how a run's rollouts ended over its iterations.

    The parts of their rewards are averaged in the same columns of iterations.
    """
    key = ("outcomes", run_id, kind, await queries.next_iteration(run_id))
    return await heavy_reads.cached(caller.namespace, key, lambda database: outcomes(database, run_id, kind))


@router.get("/trajectories/{trajectory_id}")
async def get_trajectory(queries: CurrentQueries, trajectory_id: TrajectoryId) -> TrajectoryOut:
    """Get a trajectory. Shows messages, tool calls, score with explanation, parts of the reward and token counts."""
    return TrajectoryOut.of(await queries.trajectory(trajectory_id))


@router.get("/trajectories/{trajectory_id}/tokens")
async def get_tokens(queries: CurrentQueries, trajectory_id: TrajectoryId) -> SampledTokens:
    """Get the tokens that the agent sampled in a trajectory. Each has its log-probability."""
    turns = await queries.tokens(trajectory_id)
    return SampledTokens.model_validate({"trajectory_id": trajectory_id, "turns": turns})


@router.get("/trajectories/{trajectory_id}/judge-questions")
async def list_judge_questions(
    queries: CurrentQueries,
    judging: CurrentJudging,
    settings: CurrentSettings,
    caller: CurrentCaller,
    trajectory_id: TrajectoryId,
) -> JudgeQuestions:
    """Show what a run's judge asks a language model about a rollout.

    The questions are about all rollouts of its group that are judged together. Nothing is sent to the model.
    """
    row = await queries.trajectory(trajectory_id)
    questions = await judging.do(caller.namespace, lambda database: questions_about(database, settings, row))
    return JudgeQuestions(
        trajectory_id=trajectory_id, questions=[JudgeQuestionOut.of(question) for question in questions]
    )


@router.post("/trajectories/{trajectory_id}/likelihood")
async def score_tokens(
    service: CurrentService,
    queries: CurrentQueries,
    scoring: CurrentScoring,
    caller: CurrentCaller,
    trajectory_id: TrajectoryId,
    request: LikelihoodRequest,
) -> Likelihood:
    """Score a rollout's sampled tokens by two checkpoints of its run.

    Shows what training made likelier. Nothing is stored. The response comes when the backend has scored all tokens.
    """
    row = await queries.trajectory(trajectory_id)
    return await scoring.do(caller.namespace, lambda database: likelihood(database, service.connect, row, request))
