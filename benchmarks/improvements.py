"""Improvements that benchmarks start, and wait for at services that are down at times."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from ulid import ULID

from learnloop_service.app.cli.client import Service, ServiceRefused, ServiceUnreachable
from learnloop_service.environment.json_type import Json

_MOST_S = 3600.0
_POLL_S = 0.5
_TRANSIENT = {httpx.codes.CONFLICT, httpx.codes.SERVICE_UNAVAILABLE}
"""Also a conflict: another process answers the same request, or did so when it was killed."""


def improved(services: Sequence[Service], request: Mapping[str, Json]) -> Json:
    """Start an improvement, and return it once it has ended. Raises TimeoutError."""
    path = f"/improvements/{answered(services, 'POST', '/improvements', json=request, key=str(ULID()))['id']}"
    until = time.monotonic() + _MOST_S
    while (improvement := answered(services, "GET", path))["status"] in ("running", "paused"):
        if time.monotonic() > until:
            raise TimeoutError(f"{path} did not end within {_MOST_S:.0f} s: {improvement['reason']}")
        time.sleep(_POLL_S)
    return improvement


def answered(services: Sequence[Service], method: str, path: str, **request: Any) -> Json:
    """Return the reply of the first service that answers the request. Raises TimeoutError, and ServiceRefused."""
    until = time.monotonic() + _MOST_S
    while time.monotonic() < until:
        for service in services:
            try:
                return service.call(method, path, **request)
            except ServiceUnreachable:
                continue
            except ServiceRefused as error:
                if error.status not in _TRANSIENT:
                    raise
        time.sleep(_POLL_S)
    raise TimeoutError(f"no service answered {method} {path} within {_MOST_S:.0f} s")
