"""Requires an API key for all but the public paths, before anything else happens and before a body is read."""

import math
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from app.auth import scopes
from app.auth.caller import LOCAL, Caller
from app.auth.failed_keys import FailedKeys
from app.auth.key_cache import KeyCache
from app.auth.origin_check import refuse_foreign_pages
from app.auth.rate_limit import RateLimit
from app.errors import DATABASE_DOWN, Forbidden, ServiceError, TooManyRequests, Unauthorized, problem_of
from app.security.client_address import client_of


class Guard:
    """ASGI middleware: 401 without a valid key, 403 if it lacks the scope, 429 above the rate limit.

    Admitted requests have a Caller in their state. If keys are not required, it is the local caller.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        required: bool,
        limit: RateLimit | None,
        failed_keys: FailedKeys | None = None,
        origins: Collection[str] = (),
    ) -> None:
        """Pages of `origins` may call without keys."""
        self._app = app
        self._required = required
        self._limit = limit
        self._failed_keys = failed_keys
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # the service has none
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and not scopes.is_public(scopes.route_path(scope)):
            try:
                caller = await self._admitted(scope) if self._required else self._local(scope)
            except (ServiceError, *DATABASE_DOWN) as error:
                await problem_of(error, scope["path"])(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    def _local(self, scope: Scope) -> Caller:
        refuse_foreign_pages(scope, self._origins)
        return LOCAL

    async def _admitted(self, scope: Scope) -> Caller:
        cache: KeyCache = scope["app"].state.keys
        caller = await self._caller(cache, key_of(scope), client_of((scope.get("client") or ("",))[0]))
        wait_s = 0.0 if self._limit is None else self._limit.take(caller.actor)
        if wait_s:
            raise TooManyRequests("Too many requests with this API key.", retry_after_s=math.ceil(wait_s))
        needed = scopes.needed(scope["method"], scopes.route_path(scope))
        if needed not in caller.scopes:
            raise Forbidden(f"This API key does not have the scope {needed}.")
        return caller

    async def _caller(self, cache: KeyCache, key: str, client: str) -> Caller:
        if self._failed_keys is None:
            return await cache.caller(key)
        wait_s = self._failed_keys.wait_s(client)
        if wait_s and not cache.has(key):
            raise TooManyRequests("Too many wrong API keys from this address.", retry_after_s=math.ceil(wait_s))
        try:
            return await cache.caller(key)
        except Unauthorized:
            self._failed_keys.note(client)
            raise


def key_of(scope: Scope) -> str:
    """The key of a request, from the header only: URLs end up in logs and histories. Raises Unauthorized."""
    given: list[bytes] = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        raise Unauthorized("An API key is required: Authorization: Bearer ll_...")
    kind, _, key = given[0].decode("latin-1").partition(" ")
    if len(given) > 1 or kind.lower() != "bearer":
        raise Unauthorized("Send the API key in a single header: Authorization: Bearer ll_...")
    return key.strip()
