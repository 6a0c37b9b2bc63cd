"""Promoted names: their checkpoints, health checks, the tasks they were given, and withdrawal."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import ConfigDict, Field

from learnloop_service.app.agent_sessions.exploring import price_of_exploring
from learnloop_service.app.api.dependencies import CurrentCaller, CurrentHeavyReads, CurrentService, Limit
from learnloop_service.app.api.engine import CurrentModels, CurrentProxy
from learnloop_service.app.api.pages import ByNumber
from learnloop_service.app.api.release_views import release_brief
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.db.tables import Promotion
from learnloop_service.app.errors import NotFound
from learnloop_service.app.model_registry.promotions import Promotions
from learnloop_service.app.operations.check_promotion import check
from learnloop_service.app.operations.end_release import after_overtaken
from learnloop_service.app.releases.store import ReleaseStore
from learnloop_service.app.schemas.base import Page, RequestBody, ResponseModel
from learnloop_service.app.schemas.intervals import IntervalOut
from learnloop_service.app.schemas.prompts import PromptUsed
from learnloop_service.app.schemas.releases import ReleaseBrief
from learnloop_service.app.schemas.trajectories import TrajectoryBrief
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol.model_name import ModelName

router = keyed_router("models")

NAME_PART = r"^[A-Za-z0-9._-]{1,128}$"
ProjectPart = Annotated[str, Path(pattern=NAME_PART, description="Project of the model")]
PromotedPart = Annotated[str, Path(pattern=NAME_PART, description="Promoted name within its project")]
SINGLE_PAGE = "Always null: the list has a single page."


class ExploreRequest(RequestBody):
    """How many sessions are to explore."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"share": 0.2}]})

    share: float = Field(ge=0, le=0.5)
    """Share of the name's sessions with `train: true` and a user that are sampled at temperature 1, without `top_p`,
    `top_k`, `min_p` and `seed`, whatever their clients ask. 0: none."""


class Exploring(ResponseModel):
    """How sessions of a promoted name explore."""

    share: float
    """Share of the consented sessions that are sampled at temperature 1."""
    actor: str
    """Who set it."""
    since: datetime
    """When it was set."""
    difference: IntervalOut | None = None
    """Outcome of explored sessions less that of the others, in points. Only in `GET /promotions/{project}/{name}`, for
    the current promotion, and if it is known."""
    notes: list[str] = Field(default_factory=list)
    """What the difference means."""


class PromotionOut(ResponseModel):
    """A name, and the checkpoint and the prompt that it means."""

    name: str
    """The promoted name, as requests use it: `PROJECT/NAME`."""
    model: str
    """Name of the model that the checkpoint belongs to, as `PROJECT/NAME`."""
    step: int
    """Step of the checkpoint."""
    prompt: PromptUsed | None
    """The prompt that it is promoted with; null for the environment's own texts."""
    prompt_missed_at: datetime | None
    """When a request to `/v1` or in a session last came without that prompt; null if none did."""
    backend: str
    """Name of the backend that has it."""
    actor: str
    """Who promoted it: an API key, or `local` if no keys are required."""
    evidence: dict[str, Json] | None
    """What the trial found that it won, with the id of the evaluation; null if it was promoted without one."""
    created_at: datetime
    """When it was promoted."""
    withdrawn_at: datetime | None
    """When the name was taken away from it; null if it has the name, or another checkpoint took it over."""
    release: ReleaseBrief | None = None
    """The live release of the name, on its current checkpoint; null if there is none."""
    explore: Exploring | None = None
    """How sessions of the name explore; null if that was never set."""
    warnings: list[str] = Field(default_factory=list)
    """What whoever promoted it should know; only in the response to that request."""


class PromotionsOut(ResponseModel):
    """The complete list. It has a single page."""

    items: list[PromotionOut]
    """The promotions."""
    next_cursor: None = Field(default=None, description=SINGLE_PAGE)


class PromotionCheck(ResponseModel):
    """Whether a promoted name answers."""

    name: str
    """The promoted name, as `PROJECT/NAME`."""
    checkpoint: str
    """What it means now, as its backend calls it."""
    healthy: bool
    """Whether that checkpoint answered."""
    answered_by: str | None
    """Model that the answer names; null if there was none."""
    seconds: float
    """How long the answer took, in seconds."""
    reason: str | None
    """Why it is not healthy; null if it is."""


@router.get("/promotions")
async def list_promotions(service: CurrentService, caller: CurrentCaller) -> PromotionsOut:
    """List the promoted names, each with its current checkpoint."""
    promotions = await Promotions(service.database).all(caller.project)
    return PromotionsOut(items=await _with_releases(service, promotions, caller.project))


@router.get("/promotions/{project}/{name}")
async def get_promotion(
    service: CurrentService,
    caller: CurrentCaller,
    heavy_reads: CurrentHeavyReads,
    project: ProjectPart,
    name: PromotedPart,
    limit: Limit = 50,
) -> PromotionsOut:
    """List the checkpoints that a name was promoted to, newest first. The first one is current.

    If its sessions explore, it says what that costs users: the newest 10,000 of them whose windows are closed are
    compared.
    """
    history = await Promotions(service.database).history(project, name, limit=limit) if caller.sees(project) else []
    if not history:
        raise NotFound(_nothing(project, name))
    listed = await _with_releases(service, history, project)
    if (explore := listed[0].explore) is not None:
        explore.difference, explore.notes = await heavy_reads.cached(
            project, ("explore", project, name), lambda database: price_of_exploring(database, project, name)
        )
    return PromotionsOut(items=listed)


@router.post("/promotions/{project}/{name}/explore")
async def explore_promotion(
    service: CurrentService, caller: CurrentCaller, project: ProjectPart, name: PromotedPart, request: ExploreRequest
) -> PromotionOut:
    """Let a share of the sessions of a promoted name explore.

    A coin chooses among the sessions opened from then on with `train: true`, a user and the embedded backend. A grammar
    (structured output, a forced tool call) stays as the client asks. Later promotions of the name keep the share.
    """
    promotions, actor = Promotions(service.database), caller.actor
    changed = await promotions.explore(project, name, request.share, actor) if caller.sees(project) else None
    if changed is None:
        raise NotFound(_nothing(project, name))
    return promotion_out(changed)


@router.post("/promotions/{project}/{name}/check")
async def check_promotion(
    service: CurrentService,
    models: CurrentModels,
    proxy: CurrentProxy,
    caller: CurrentCaller,
    project: ProjectPart,
    name: PromotedPart,
) -> PromotionCheck:
    """Ask a promoted name for one token.

    It is healthy if the checkpoint that the name means answers.
    """
    await _require(service, caller, project, name)
    promoted = ModelName(project, name)
    health = await check(models, proxy.http, caller, promoted)
    return PromotionCheck(name=str(promoted), **asdict(health))


@router.get("/promotions/{project}/{name}/requests")
async def list_promotion_requests(
    service: CurrentService,
    caller: CurrentCaller,
    project: ProjectPart,
    name: PromotedPart,
    paging: ByNumber,
) -> Page[TrajectoryBrief]:
    """List what `/ask` and `/invoke` were asked of a promoted name, newest first.

    Each names the checkpoint that answered. Messages are left out: `GET /trajectories/{id}` has them. Requests to `/v1`
    are not stored.
    """
    await _require(service, caller, project, name)
    trajectories = await service.queries.asked_as(
        str(ModelName(project, name)),
        project=caller.project,
        before=paging.before,
        limit=paging.fetched,
    )
    return paging.page(trajectories, TrajectoryBrief.of, lambda row: row.seq)


@router.delete("/promotions/{project}/{name}")
async def withdraw_promotion(
    service: CurrentService,
    caller: CurrentCaller,
    project: ProjectPart,
    name: PromotedPart,
    end_release: Annotated[
        bool, Query(description="Ends a live release of the name as overtaken. Without it, 409.")
    ] = False,
) -> PromotionOut:
    """Take a promoted name away, and return what it meant. Requests that use the name fail from then on.

    The checkpoint stays. Promote one to the name again to have the name back, with its history. A name with a live
    release is refused with 409, unless `end_release` ends the release.
    """
    if not caller.sees(project):
        raise NotFound(_nothing(project, name))
    withdrawal = await Promotions(service.database).withdraw(project, name, caller.actor, end_release=end_release)
    if withdrawal is None:
        raise NotFound(_nothing(project, name))
    withdrawn, ended = withdrawal
    await after_overtaken(service, ended, caller.actor)
    return promotion_out(withdrawn)


def promotion_out(row: Promotion, release: ReleaseBrief | None = None, warnings: Sequence[str] = ()) -> PromotionOut:
    """Return a promotion as responses show it."""
    plain = ("step", "prompt_missed_at", "backend", "actor", "evidence", "created_at", "withdrawn_at")
    same: dict[str, Any] = {name: getattr(row, name) for name in plain}
    return PromotionOut(
        name=str(ModelName(row.project, row.name)),
        model=str(ModelName(row.project, row.model_name)),
        prompt=PromptUsed.of_reference(row.prompt),
        release=release,
        explore=None if row.explore is None else Exploring.model_validate(row.explore),
        warnings=list(warnings),
        **same,
    )


async def _with_releases(
    service: CurrentService, promotions: Sequence[Promotion], project: str | None
) -> list[PromotionOut]:
    live = {stable.id: release_brief(row, stable) for row, stable in await ReleaseStore(service.database).live(project)}
    return [promotion_out(promotion, live.get(promotion.id)) for promotion in promotions]


async def _require(service: CurrentService, caller: Caller, project: str, name: str) -> None:
    if not caller.sees(project) or await Promotions(service.database).current(project, name) is None:
        raise NotFound(_nothing(project, name))


def _nothing(project: str, name: str) -> str:
    return f"No checkpoint is promoted to '{project}/{name}'."
