"""API keys: make, list and revoke them. All of it needs the scope `operator`."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from app.api.dependencies import CurrentCaller, CurrentService, IdCursor, Limit
from app.api.presentation import page
from app.auth.caller import ANY_PROJECT, Caller
from app.auth.keys import Keys
from app.auth.scopes import Scope
from app.db.tables import ApiKey
from app.errors import Forbidden, InvalidRequest
from app.schemas import runs as schemas

router = APIRouter(tags=["keys"])
KeyId = Annotated[str, Path(pattern=r"^[0-9A-HJKMNP-TV-Z]{26}$")]


class KeyRequest(schemas._Request):
    """A key to make. It is for one project, the operator's own by default; `*` is for all."""

    project: schemas.Name | Literal["*"] | None = None
    name: str = Field(min_length=1, max_length=100)
    """What it is for; for people."""
    scopes: set[Scope] = Field(
        default={Scope.READ, Scope.WRITE}, min_length=1, json_schema_extra={"uniqueItems": False}
    )
    expires_days: int | None = Field(default=None, ge=1, le=3_650)
    """None: it does not expire."""


class KeyOut(BaseModel):
    """A key, without the key itself."""

    id: str
    project: str
    name: str
    prefix: str
    scopes: list[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    """To the minute."""


class KeyCreated(KeyOut):
    """A new key."""

    key: str
    """Shown this once; the service keeps only its hash."""


@router.post("/keys", status_code=201)
async def create_key(service: CurrentService, caller: CurrentCaller, request: KeyRequest) -> KeyCreated:
    """Make a key. The reply is the only place where it can be read."""
    new = await Keys(service.sessions).create(
        project=_project(request, caller),
        name=request.name,
        scopes=request.scopes,
        expires_days=request.expires_days,
    )
    return KeyCreated(**_shown(new.row).model_dump(), key=new.key)


@router.get("/keys")
async def list_keys(
    service: CurrentService, caller: CurrentCaller, cursor: IdCursor = None, limit: Limit = 50
) -> schemas.Page[KeyOut]:
    """The newest first, revoked and expired ones too."""
    found = await Keys(service.sessions).list(caller, before=cursor, limit=limit + 1)
    return page(found, limit, _shown, lambda row: row.id)


@router.delete("/keys/{key_id}")
async def revoke_key(service: CurrentService, caller: CurrentCaller, key_id: KeyId) -> KeyOut:
    """End a key. Every replica refuses it within 5 seconds."""
    return _shown(await Keys(service.sessions).revoke(caller, key_id))


def _project(request: KeyRequest, caller: Caller) -> str:
    if caller.project is None:
        if request.project is None:
            raise InvalidRequest(("body", "project"), f"name a project, or {ANY_PROJECT} for all")
        return request.project
    if request.project not in (None, caller.project):
        raise Forbidden(f"the API key is for the project {caller.project}: it makes keys to no other")
    return caller.project


def _shown(row: ApiKey) -> KeyOut:
    return KeyOut.model_validate(row, from_attributes=True)
