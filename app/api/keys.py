"""Creates, lists and revokes API keys. All of this needs the scope `operator`."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Path
from pydantic import ConfigDict, Field

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentCallers, CurrentDatabase
from learnloop_service.app.api.pages import ById
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import ANY_PROJECT, Caller
from learnloop_service.app.auth.keys import Keys
from learnloop_service.app.auth.scopes import Scope
from learnloop_service.app.errors import Forbidden, InvalidRequest
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
    """The project that the key gives access to; `*` for all. Default: the project of the key that is used."""
    name: str = Field(min_length=1, max_length=100)
    """What the key is for; only for people to read."""
    scopes: set[Scope] = Field(
        default={Scope.READ, Scope.WRITE}, min_length=1, json_schema_extra={"uniqueItems": False}
    )
    """What the key allows: `read` (every GET), `write` (everything else but keys) and `operator` (API keys and
    settings of the service). None
    includes another."""
    expires_days: int | None = Field(default=None, ge=1, le=3_650)
    """Days until the key expires. Default: never."""


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
    new = await Keys(database).create(
        project=_project(request, caller),
        name=request.name,
        scopes=request.scopes,
        expires_days=request.expires_days,
    )
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


def _project(request: KeyRequest, caller: Caller) -> str:
    if caller.project is None:
        if request.project is None:
            raise InvalidRequest(("body", "project"), f"Give a project, or {ANY_PROJECT} for all projects.")
        return request.project
    if request.project not in (None, caller.project):
        raise Forbidden(f"This API key belongs to project {caller.project} and cannot create keys for another one.")
    return caller.project
