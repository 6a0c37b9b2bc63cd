"""Requires an API key or a browser's sign-in on all but the public paths, before the rest of a request is read."""

import math
from collections.abc import Collection

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from learnloop_service.app.auth import scopes
from learnloop_service.app.auth.caller import LOCAL, Caller
from learnloop_service.app.auth.callers import Callers
from learnloop_service.app.auth.credentials import Credential, credential_of, removed_cookies, session_key_of
from learnloop_service.app.auth.failed_keys import FailedKeys
from learnloop_service.app.auth.origin_check import refuse_foreign_pages, refuse_other_origins
from learnloop_service.app.auth.rate_limit import CallerRateLimit
from learnloop_service.app.errors import (
    DATABASE_DOWN,
    Forbidden,
    ServiceError,
    TooManyRequests,
    Unauthorized,
    problem_of,
)
from learnloop_service.app.security.client_address import client_of
from learnloop_service.training.protocol.meant_path import tidy


class Guard:
    """ASGI middleware: 401 without a valid key or sign-in, 403 if it lacks the scope, 429 above the rate limit.

    Admitted requests have a Caller in their state. If keys are not required, it is the local caller. The dashboard's
    pages are served without a key: they show how to sign in.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        required: bool | None,
        limit: CallerRateLimit | None,
        failed_keys: FailedKeys | None = None,
        origins: Collection[str] = (),
    ) -> None:
        """Keys are required if `required` is None and one was ever created. Web pages from `origins` can make requests
        if keys are not required."""
        self._app = app
        self._required = required
        self._limit = limit
        self._failed_keys = failed_keys
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the service has no websockets
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and not scopes.is_public(scopes.route_path(scope)):
            try:
                caller = await self._admitted(scope) if await self._requires(scope) else await self._local(scope)
            except (ServiceError, *DATABASE_DOWN) as error:
                if not scopes.is_page(scope["method"], scopes.route_path(scope)):
                    await _refused(error, scope)(scope, receive, send)
                    return
            else:
                scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    async def _requires(self, scope: Scope) -> bool:
        if self._required is not None:
            return self._required
        callers: Callers = scope["app"].state.callers
        return await callers.keys.any_exist()

    async def _local(self, scope: Scope) -> Caller:
        refuse_foreign_pages(scope, self._origins)
        if (key := session_key_of(scope)) is None:
            return LOCAL
        callers: Callers = scope["app"].state.callers
        return _restrict_agent(await callers.agent_sessions.caller(key), scope)

    async def _admitted(self, scope: Scope) -> Caller:
        credential = credential_of(scope)
        if credential.is_sign_in:
            refuse_other_origins(scope)
        callers: Callers = scope["app"].state.callers
        caller = await self._caller(callers, credential, client_of((scope.get("client") or ("",))[0]))
        wait_s = 0.0 if self._limit is None else self._limit.take(caller.actor)
        if wait_s:
            raise TooManyRequests("Too many requests with this API key.", retry_after_s=math.ceil(wait_s))
        needed = scopes.needed(scope["method"], scopes.route_path(scope))
        if caller.improvement_id is not None:
            return _restrict_proposer(caller, caller.improvement_id, scope)
        if needed is not None and needed not in caller.scopes:
            raise Forbidden(f"This API key does not have the scope {needed}.")
        return _restrict_agent(caller, scope)

    async def _caller(self, callers: Callers, credential: Credential, client: str) -> Caller:
        if self._failed_keys is None:
            return await callers.caller(credential)
        wait_s = self._failed_keys.wait_s(client)
        if wait_s and not callers.has(credential):
            raise TooManyRequests("Too many wrong API keys from this address.", retry_after_s=math.ceil(wait_s))
        try:
            return await callers.caller(credential)
        except Unauthorized:
            self._failed_keys.note(client)
            raise


def _refused(error: Exception, scope: Scope) -> Response:
    """Return the response to a request that was not admitted. It removes the cookies of a sign-in that has ended."""
    response = problem_of(error, scope["path"])
    for cookie in removed_cookies(scope) if isinstance(error, Unauthorized) else ():
        response.headers.append("set-cookie", cookie)
    return response


def _restrict_agent(caller: Caller, scope: Scope) -> Caller:
    """Return the caller. Raises Forbidden if it is an agent and the path is not for it."""
    path = tidy(scopes.route_path(scope))  # nothing exists at an untidy path, and the reply says what was meant
    if caller.agent is not None and not scopes.is_for_agent(path, caller.agent.session_id):
        raise Forbidden("This key is of an agent's session: it reaches the models under /v1, and its own session.")
    return caller


def _restrict_proposer(caller: Caller, improvement_id: str, scope: Scope) -> Caller:
    """Return the caller. Raises Forbidden if the request is not for who proposes prompts for that improvement."""
    if not scopes.is_for_proposer(scope["method"], tidy(scopes.route_path(scope)), improvement_id):
        raise Forbidden(f"This API key only reads the material of improvement {improvement_id} and proposes prompts.")
    return caller
