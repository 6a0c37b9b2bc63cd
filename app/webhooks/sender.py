"""Sends one message once and returns the result."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

import httpx
import structlog

from learnloop.http_settings import tls
from learnloop_service.app.db.clock import DatabaseTime
from learnloop_service.app.db.tables import WebhookEndpoint
from learnloop_service.app.security.address_guard import AddressGuard, AddressRefused, GuardedTransport
from learnloop_service.app.security.secret_box import SecretBox, SecretUnreadable
from learnloop_service.app.security.webhook_signing import signed_headers
from learnloop_service.environment.bounded_http import parse_retry_after

TIMEOUT_S = 15.0
"""Time limit for a whole attempt, from resolving the host name to the response headers, in seconds."""
FRONTEND_ID = "0" * 26
"""Id of the endpoint that FRONTEND_URL configures."""
_WITH_RETRY_AFTER = (429, 503)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where a message goes: an endpoint's current state. If `id` is None there is no endpoint, and the URL is the
    operator's."""

    id: str | None
    url: str
    secrets: tuple[bytes, ...] = ()
    """Encrypted secrets. The message is signed with each of them."""

    @classmethod
    def of(cls, endpoint: WebhookEndpoint, now: datetime) -> Self:
        """Return the endpoint's state at that time of the database's clock."""
        previous = None
        if endpoint.previous_until is not None and endpoint.previous_until > now:
            previous = endpoint.previous_secret
        secrets = tuple(secret for secret in (endpoint.secret, previous) if secret is not None)
        return cls(endpoint.id, endpoint.url, secrets)


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of an attempt; `error` is None if the receiver accepted the message."""

    seconds: float
    status: int | None
    error: str | None
    retry_after_s: float | None = None
    """Seconds that the Retry-After header asked for."""


class Sender:
    """Sends messages. It uses no proxies from the environment, follows no redirects and reads no bodies of replies."""

    def __init__(self, box: SecretBox, guard: AddressGuard, timeout_s: float = TIMEOUT_S) -> None:
        self._box = box
        self._timeout_s = timeout_s
        direct = httpx.AsyncHTTPTransport(
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            verify=tls(),
        )
        self._operators = _client(direct, timeout_s)
        self._users = _client(GuardedTransport(guard, direct), timeout_s)

    async def send(self, receiver: Receiver, id: str, clock: DatabaseTime, body: str) -> SendResult:
        """Make one attempt, signed with the time when it is sent. Any error is returned in the result."""
        started = time.monotonic()
        status: int | None = None
        retry_after_s: float | None = None
        try:
            async with asyncio.timeout(self._timeout_s), self._post(receiver, id, clock, body) as response:
                status = response.status_code
                if status in _WITH_RETRY_AFTER:
                    retry_after_s = parse_retry_after(response.headers.get("retry-after"), datetime.now(UTC))
            error = None if 200 <= status < 300 else f"the receiver answered {status}"
        except (AddressRefused, SecretUnreadable) as refused:
            error = str(refused)
        except TimeoutError:
            error = f"no answer within {self._timeout_s:g} s"
        except Exception as failed:
            # A receiver can fail in unexpected ways, which must not end the sending to others.
            if not isinstance(failed, httpx.HTTPError | httpx.InvalidURL):
                log.exception("webhook could not be sent", delivery=id)
            error = f"{type(failed).__name__}: {failed}"
        return SendResult(time.monotonic() - started, status, error, retry_after_s)

    @asynccontextmanager
    async def _post(self, receiver: Receiver, id: str, clock: DatabaseTime, body: str) -> AsyncIterator[httpx.Response]:
        secrets = [self._box.open(secret, receiver.id or "") for secret in receiver.secrets]
        headers = {"content-type": "application/json", "user-agent": "learnloop"}
        headers |= signed_headers(id, clock.now(), body, secrets)
        client = self._operators if receiver.id in (None, FRONTEND_ID) else self._users
        async with client.stream("POST", receiver.url, content=body.encode(), headers=headers) as response:
            yield response

    async def close(self) -> None:
        """Close the connections."""
        await self._users.aclose()
        await self._operators.aclose()


def _client(transport: httpx.AsyncBaseTransport, timeout_s: float) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport, timeout=timeout_s, follow_redirects=False, trust_env=False)
