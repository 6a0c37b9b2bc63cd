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

from app.db.clock import DatabaseTime
from app.db.tables import WebhookEndpoint
from app.security.address_guard import AddressGuard, AddressRefused, GuardedTransport
from app.security.secret_box import SecretBox, SecretUnreadable
from app.security.webhook_signing import signed_headers
from app.webhooks.retries import parse_retry_after

TIMEOUT_S = 15.0
"""For one whole attempt, from resolving the host name to the response headers."""
FRONTEND_ID = "0" * 26
"""The endpoint configured by FRONTEND_URL."""
_WITH_RETRY_AFTER = (429, 503)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where a message goes: an endpoint's current state. `id` None: no endpoint, the URL is the operator's."""

    id: str | None
    url: str
    secrets: tuple[bytes, ...] = ()
    """Encrypted; the message is signed with each of them."""

    @classmethod
    def of(cls, endpoint: WebhookEndpoint, now: datetime) -> Self:
        """The endpoint at that time of the database's clock."""
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
    """What the Retry-After header asked for."""


class Sender:
    """Sends messages. Neither proxies of the environment nor redirects are followed, and no reply's body is read."""

    def __init__(self, box: SecretBox, guard: AddressGuard, timeout_s: float = TIMEOUT_S) -> None:
        self._box = box
        self._timeout_s = timeout_s
        direct = httpx.AsyncHTTPTransport(
            trust_env=False, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )
        self._operators = _client(direct, timeout_s)
        self._users = _client(GuardedTransport(guard, direct), timeout_s)

    async def send(self, receiver: Receiver, id: str, clock: DatabaseTime, body: str) -> SendResult:
        """One attempt, signed as of the moment when it is sent. Whatever goes wrong is in the reply."""
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
            # A receiver can be wrong in ways that nobody thought of: that must not end the sending to others.
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
