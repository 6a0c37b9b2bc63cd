"""Releases: start, list, inspect, hold, resume, roll back and promote them."""

from typing import Annotated

from fastapi import Depends, Path, Query
from sqlalchemy.ext.asyncio import AsyncSession

from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentService, Limit
from learnloop_service.app.api.engine import CurrentEngine, CurrentEvaluations
from learnloop_service.app.api.pages import ById, ByNumber, Paging, StartedBy
from learnloop_service.app.api.promotions import ProjectPart, PromotedPart
from learnloop_service.app.api.release_views import release_accepted, release_brief, release_out
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import Caller
from learnloop_service.app.errors import NotFound
from learnloop_service.app.http import idempotency
from learnloop_service.app.operations.end_release import cancel_trial
from learnloop_service.app.operations.start.release import ReleaseStarter, StartedRelease
from learnloop_service.app.releases.store import ReleaseStore, Verb
from learnloop_service.app.schemas.base import Page
from learnloop_service.app.schemas.releases import (
    NewReleaseRequest,
    ReleaseAccepted,
    ReleaseBrief,
    ReleaseEventOut,
    ReleaseOut,
    ReleaseVerified,
    RollbackRequest,
    UnitOut,
)

router = keyed_router("releases")

ReleaseId = Annotated[str, Path(max_length=64, pattern=NO_NUL, description="Id of the release")]
UnitCursor = Annotated[
    str | None, Query(pattern=r"^[0-9A-Za-z]{1,64}$", description="`next_cursor` of the previous page")
]


async def _store(service: CurrentService) -> ReleaseStore:
    return ReleaseStore(service.database)


CurrentStore = Annotated[ReleaseStore, Depends(_store)]


@router.post("/promotions/{project}/{name}/releases", status_code=202)
async def post_release(
    engine: CurrentEngine,
    evaluations: CurrentEvaluations,
    caller: CurrentCaller,
    project: ProjectPart,
    name: PromotedPart,
    request: NewReleaseRequest,
) -> ReleaseAccepted:
    """Give a candidate a share of the users of a promoted name.

    The share rises as guardrails permit. A trial on held-out scenarios comes first. If the candidate does harm, every
    user gets the stable checkpoint again. With the goal `better` or `not_worse`, outcomes promote it.
    """
    starter = ReleaseStarter(engine, evaluations)
    return release_accepted(await starter.start(project, name, request, caller, _save_reply))


async def _save_reply(tx: AsyncSession, started: StartedRelease) -> None:
    await idempotency.complete(tx, status=202, reply=release_accepted(started))


@router.get("/promotions/{project}/{name}/releases")
async def list_releases_of_promotion(
    store: CurrentStore, caller: CurrentCaller, project: ProjectPart, name: PromotedPart, paging: ById
) -> Page[ReleaseBrief]:
    """List the releases of a promoted name, newest first."""
    if not caller.sees(project):
        raise NotFound(f"No checkpoint is promoted to '{project}/{name}'.")
    releases = await store.listed(project=project, name=name, before=paging.cursor, limit=paging.fetched)
    return paging.page(releases, lambda pair: release_brief(*pair), lambda pair: pair[0].id)


@router.get("/releases")
async def list_releases(
    store: CurrentStore, caller: CurrentCaller, paging: ById, started_by: StartedBy = None
) -> Page[ReleaseBrief]:
    """List the caller's releases, newest first."""
    whose = {"project": caller.project, "by": started_by}
    releases = await store.listed(before=paging.cursor, limit=paging.fetched, **whose)
    return paging.page(releases, lambda pair: release_brief(*pair), lambda pair: pair[0].id)


@router.get("/releases/{release_id}")
async def get_release(store: CurrentStore, release_id: ReleaseId) -> ReleaseOut:
    """Get a release.

    Shows its arms, its guardrails with the evidence, and what the next stage lacks.
    """
    return release_out(await store.whole(release_id))


@router.get("/releases/{release_id}/units")
async def list_release_units(
    store: CurrentStore, release_id: ReleaseId, cursor: UnitCursor = None, limit: Limit = 50
) -> Page[UnitOut]:
    """List the enrolled users or sessions of a release.

    Users are shown by the hashes of their keys.
    """
    await store.get(release_id)
    paging = Paging(cursor, limit)
    units = await store.units(release_id, after=cursor, limit=paging.fetched)
    return paging.page(units, UnitOut.of, lambda row: row.unit)


@router.get("/releases/{release_id}/events")
async def list_release_events(store: CurrentStore, release_id: ReleaseId, paging: ByNumber) -> Page[ReleaseEventOut]:
    """List the events of a release in order, each with its evidence."""
    await store.get(release_id)
    events = await store.events(release_id, after=paging.after(), limit=paging.fetched)
    return paging.page(events, ReleaseEventOut.of, lambda row: row.seq)


@router.get("/releases/{release_id}/verify")
async def verify_release(store: CurrentStore, release_id: ReleaseId) -> ReleaseVerified:
    """Compute the evidence of a release again and compare.

    Also that of each of its events. It follows from the observations.
    """
    return await store.verified(release_id)


@router.post("/releases/{release_id}/hold", status_code=202)
async def hold_release(store: CurrentStore, caller: CurrentCaller, release_id: ReleaseId) -> ReleaseOut:
    """Keep the share of a running release as it is until it is resumed. Guardrails and the breaker stay active."""
    return await _act(store, caller, release_id, "hold")


@router.post("/releases/{release_id}/resume", status_code=202)
async def resume_release(store: CurrentStore, caller: CurrentCaller, release_id: ReleaseId) -> ReleaseOut:
    """Let a held release go on. The breaker forgets the failures before."""
    return await _act(store, caller, release_id, "resume")


@router.post("/releases/{release_id}/promote", status_code=202)
async def promote_release(store: CurrentStore, caller: CurrentCaller, release_id: ReleaseId) -> ReleaseOut:
    """Give the name to the candidate now. It is recorded that outcomes did not decide this."""
    return await _act(store, caller, release_id, "promote")


@router.post("/releases/{release_id}/rollback", status_code=202)
async def roll_back_release(
    service: CurrentService,
    store: CurrentStore,
    caller: CurrentCaller,
    release_id: ReleaseId,
    request: RollbackRequest | None = None,
) -> ReleaseOut:
    """Take the candidate back.

    The next request of every user gets the stable checkpoint. A trial in progress is cancelled.
    """
    row, _ = await store.get(release_id)
    end_sessions = (request or RollbackRequest()).sessions == "end"
    release = await _act(store, caller, release_id, "rollback", end_sessions=end_sessions)
    await cancel_trial(service, row, caller.actor)
    return release


async def _act(
    store: ReleaseStore, caller: Caller, release_id: str, verb: Verb, *, end_sessions: bool = False
) -> ReleaseOut:
    await store.act(release_id, verb, caller.actor, end_sessions=end_sessions)
    return release_out(await store.whole(release_id))
