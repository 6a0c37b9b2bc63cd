"""Creates, lists and revokes API keys. All of this needs the scope `operator`."""

from datetime import datetime
from typing import Annotated, Literal, Self

from fastapi import Path
from pydantic import ConfigDict, Field, model_validator

from learnloop_service.app.api.dependencies import NO_NUL, CurrentCaller, CurrentCallers, CurrentDatabase
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import ANY_PROJECT, Caller
from learnloop_service.app.auth.keys import Keys
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.auth.tenancy import IMPROVEMENT, require
from learnloop_service.app.db.database import Database
from learnloop_service.app.db.tables import Improvement
from learnloop_service.app.errors import Forbidden, InvalidRequest, existing
from learnloop_service.app.schemas.base import Name, Page, RequestBody, ResponseModel

router = keyed_router("keys")
KeyId = Annotated[str, Path(pattern=r"^[0-9A-HJKMNP-TV-Z]{26}$", description="Id of the API key")]


class KeyRequest(RequestBody):
    """An API key to create."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "ci", "project": "mail", "scopes": ["read", "write"], "expires_days": 90}]
        }
    )

    project: Name | Literal["*"] | None = None
    """The project that the key gives access to; `*` for all. Default: the project of the key that is used. A key for an
    improvement has that improvement's."""
    name: str = Field(min_length=1, max_length=100)
    """What the key is for; only for people to read."""
    scopes: set[Scope] = Field(
        default={Scope.READ, Scope.WRITE}, min_length=1, json_schema_extra={"uniqueItems": False}
    )
    """What the key allows: `read` (every GET), `write` (everything else but keys) and `operator` (API keys and
    settings of the service). None includes another. `propose`, alone and with `improvement_id`, allows to read the
    material of that improvement and to propose prompts for it."""
    improvement_id: str | None = Field(default=None, max_length=64, pattern=NO_NUL)
    """Id of the improvement that a key with the scope `propose` is for."""
    expires_days: int | None = Field(default=None, ge=1, le=3_650)
    """Days until the key expires. Default: never."""

    @model_validator(mode="after")
    def _proposes_for_one(self) -> Self:
        if (self.improvement_id is not None) != (Scope.PROPOSE in self.scopes) or self.scopes > {Scope.PROPOSE}:
            raise ValueError("The scope propose stands alone, and together with improvement_id.")
        return self


class KeyOut(ResponseModel):
    """An API key, without the secret part."""

    id: str
    """Id of the key."""
    project: str
    """Project that the key gives access to; `*` for all."""
    name: str
    """What the key is for."""
    prefix: str
    """First characters of the key, to recognise it by."""
    scopes: list[Scope]
    """What the key allows."""
    improvement_id: str | None
    """Id of the only improvement that the key is for, if it proposes prompts; null for other keys."""
    created_at: datetime
    """When it was created."""
    expires_at: datetime | None
    """When it expires; null for never."""
    revoked_at: datetime | None
    """When it was revoked; null if it was not."""
    last_used_at: datetime | None
    """When it was last used, accurate to one minute; null if it never was."""


class KeyCreated(KeyOut):
    """A new API key."""

    key: str
    """The key itself. Shown only once: the service stores only its hash."""


@router.post("/keys", status_code=201)
async def create_key(
    callers: CurrentCallers, database: CurrentDatabase, caller: CurrentCaller, request: KeyRequest
) -> KeyCreated:
    """Create an API key. This response is the only place where the key can be read.

    The first one makes the service require keys of everyone, also where it listens on loopback.
    """
    of = None if request.improvement_id is None else await _project_of(database, caller, request.improvement_id)
    project = _project(request, caller) if of is None else of
    new = await Keys(database).create(project=project, **request.model_dump(exclude={"project"}))
    callers.keys.note_created()
    return KeyCreated(**KeyOut.of(new.row).model_dump(), key=new.key)


@router.get("/keys")
async def list_keys(database: CurrentDatabase, caller: CurrentCaller, paging: ById) -> Page[KeyOut]:
    """List API keys, newest first, including revoked and expired ones."""
    keys = await Keys(database).list(caller, before=paging.cursor, limit=paging.fetched)
    return paging.page(keys, KeyOut.of, lambda row: row.id)


@router.delete("/keys/{key_id}")
async def revoke_key(database: CurrentDatabase, caller: CurrentCaller, key_id: KeyId) -> KeyOut:
    """Revoke an API key. Every replica refuses it within 5 seconds."""
    return KeyOut.of(await Keys(database).revoke(caller, key_id))


async def _project_of(database: Database, caller: Caller, improvement_id: str) -> str:
    await require(database, caller, IMPROVEMENT, improvement_id)
    async with database() as tx:
        return existing(await tx.get(Improvement, improvement_id), "improvement", improvement_id).project


def _project(request: KeyRequest, caller: Caller) -> str:
    if caller.project is None:
        if request.project is None:
            raise InvalidRequest(("body", "project"), f"Give a project, or {ANY_PROJECT} for all projects.")
        return request.project
    if request.project not in (None, caller.project):
        raise Forbidden(f"This API key belongs to project {caller.project} and cannot create keys for another one.")
    return caller.project
