"""Browser sign-in: exchanges an API key for a cookie that scripts cannot read."""

from datetime import datetime

from fastapi import Request, Response
from pydantic import Field

from learnloop_service.app.api.dependencies import CurrentCaller, CurrentCallers
from learnloop_service.app.api.routers import keyed_router
from learnloop_service.app.auth.caller import ANY_PROJECT, LOCAL, Caller
from learnloop_service.app.auth.credentials import credential_of, is_https, key_of, removed_cookies, sign_in_cookie
from learnloop_service.app.auth.scopes import SESSION, Scope
from learnloop_service.app.schemas.base import ResponseModel

router = keyed_router("session")


class SessionOut(ResponseModel):
    """Who makes the request."""

    key_required: bool
    """Whether the service requires API keys; if not, no sign-in is needed."""
    actor: str
    """The name in events: `key:` and the first characters of the key; `local` if no keys are required."""
    project: str
    """Project that the caller has access to; `*` for all."""
    scopes: list[Scope] = Field(json_schema_extra={"uniqueItems": True})
    """What the caller may do: `read`, `write`, `operator`."""
    expires_at: datetime | None
    """When the session ends; null if the request was made with a key, or none is required."""


@router.post(SESSION)
async def sign_in(request: Request, response: Response, callers: CurrentCallers, caller: CurrentCaller) -> SessionOut:
    """Sign a browser in.

    The API key of the Authorization header is exchanged for a session, which the browser keeps in a cookie: HttpOnly,
    SameSite=Strict, and over HTTPS also Secure. It ends after LEARNLOOP_SESSION_HOURS, with the key, or with
    `DELETE /session`. If no keys are required, no cookie is set.
    """
    if caller is LOCAL:
        return _session(caller, None)
    new = await callers.sign_in(key_of(request.scope))
    cookie = sign_in_cookie(new.token, new.seconds, secure=is_https(request.scope))
    response.headers.append("set-cookie", cookie)
    return _session(caller, new.expires_at)


@router.get(SESSION)
async def get_session(request: Request, callers: CurrentCallers, caller: CurrentCaller) -> SessionOut:
    """Tell who makes the request, by cookie or by key. 401: a key is required, and the session has ended."""
    if caller is LOCAL or not (credential := credential_of(request.scope)).is_sign_in:
        return _session(caller, None)
    return _session(caller, (await callers.find_sign_in(credential.secret)).expires_at)


@router.delete(SESSION, status_code=204)
async def sign_out(request: Request, response: Response, callers: CurrentCallers, caller: CurrentCaller) -> None:
    """End the session of the cookie, and remove the cookie. Every replica refuses it within 5 seconds."""
    if caller is LOCAL or not (credential := credential_of(request.scope)).is_sign_in:
        return
    await callers.sign_out(credential.secret)
    for cookie in removed_cookies(request.scope):
        response.headers.append("set-cookie", cookie)


def _session(caller: Caller, expires_at: datetime | None) -> SessionOut:
    return SessionOut(
        key_required=caller is not LOCAL,
        actor=caller.actor,
        project=caller.project or ANY_PROJECT,
        scopes=sorted(caller.scopes),
        expires_at=expires_at,
    )
