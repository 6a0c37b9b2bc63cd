"""One connection to an OpenEnv server, and with it an instance of the environment for one episode.

The protocol is JSON messages over a WebSocket at `/ws`: `{"type": "reset" | "step", "data": {...}}` is answered by
`{"type": "observation", "data": {"observation", "reward", "done"}}` or `{"type": "error", "data": {"message", "code"}}`
(openenv/core/env_server/types.py and http_server.py of the package `openenv`).
"""

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import EpisodeFailed, Json
from learnloop_service.environment.bounded_http import json_values

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

_CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0
_MAX_MESSAGE_BYTES = 8_000_000
_MAX_VALUES = 500_000
_FULL = "CAPACITY_REACHED"


@dataclass(frozen=True, slots=True)
class Observation:
    """The server's reply to a reset or a step."""

    content: Mapping[str, Json]
    reward: float | None
    done: bool


class ActionRefused(Exception):
    """The environment did not accept an action; the message says why."""


class ServerFull(Exception):
    """The server is running as many episodes as it allows."""


class OpenEnvConnection:
    """An open connection; only one task can use it at a time."""

    def __init__(self, socket: "ClientConnection") -> None:
        self._socket = socket

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str], access: Access) -> "OpenEnvConnection":
        """Connect to the server at that URL (http or https). Raises EpisodeFailed."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        at = f"ws{url.removeprefix('http')}/ws"  # This also turns https into wss.
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                # Neither a proxy nor a redirect can lead to an address that was not checked.
                reached = await access.connect(url)
                socket = await connect(
                    at,
                    sock=reached,
                    additional_headers=headers,
                    open_timeout=None,
                    close_timeout=_CLOSE_TIMEOUT_S,
                    compression=None,
                    max_size=_MAX_MESSAGE_BYTES,
                    max_queue=1,
                )
        except TimeoutError:
            raise EpisodeFailed(
                f"the OpenEnv server did not take a connection within {_CONNECT_TIMEOUT_S:g} s"
            ) from None
        except (OSError, ValueError, WebSocketException) as error:
            raise EpisodeFailed(f"no connection to the OpenEnv server: {error}") from error
        return cls(socket)

    async def reset(self, arguments: Mapping[str, Json], timeout_s: float) -> Observation:
        """Start the episode. Raises ServerFull or EpisodeFailed."""
        try:
            return await self._ask({"type": "reset", "data": dict(arguments)}, timeout_s)
        except ActionRefused as refused:
            raise EpisodeFailed(f"the OpenEnv server did not begin an episode: {refused}") from refused

    async def step(self, action: Mapping[str, Json], timeout_s: float) -> Observation:
        """Take one step. Raises ActionRefused, ServerFull or EpisodeFailed."""
        return await self._ask({"type": "step", "data": dict(action)}, timeout_s)

    async def close(self) -> None:
        """Close the connection, which ends the episode on the server."""
        await self._socket.close()

    async def _ask(self, message: dict[str, Json], timeout_s: float) -> Observation:
        from websockets.exceptions import ConnectionClosed, WebSocketException

        try:
            async with asyncio.timeout(timeout_s):
                with suppress(ConnectionClosed):  # A full server says so and closes the connection without reading.
                    await self._socket.send(json.dumps(message))
                reply = await self._socket.recv(decode=False)
        except TimeoutError:
            raise EpisodeFailed(
                f"the OpenEnv server did not answer a {message['type']} within {timeout_s:g} s"
            ) from None
        except (OSError, WebSocketException) as error:
            raise EpisodeFailed(f"the connection to the OpenEnv server broke: {error}") from error
        return _observation(reply)


def _observation(reply: bytes) -> Observation:
    """Parse the server's reply. Raises ActionRefused, ServerFull or EpisodeFailed."""
    if json_values(reply) > _MAX_VALUES:
        raise EpisodeFailed(f"the OpenEnv server sent a message of more than {_MAX_VALUES:,} JSON values")
    try:
        message = json.loads(reply)
        kind, data = message["type"], message["data"]
        if kind == "error":
            reason, code = str(data.get("message")), data.get("code")
        else:
            content, reward, done = data["observation"], data.get("reward"), data.get("done", False)
            value = None if reward is None else float(reward)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise EpisodeFailed(f"the OpenEnv server sent no observation: {_excerpt(reply)}") from error
    if kind == "error":
        if code == _FULL:
            raise ServerFull(reason)
        errors = data.get("errors")
        raise ActionRefused(f"{reason}: {json.dumps(errors, ensure_ascii=False)}" if errors else reason)
    if value is not None and not math.isfinite(value):
        raise EpisodeFailed(f"the OpenEnv server gave a reward of {value}")
    if not isinstance(content, dict):
        raise EpisodeFailed(f"the OpenEnv server sent an observation that is no object: {_excerpt(reply)}")
    return Observation(content, value, bool(done))


def _excerpt(reply: bytes) -> str:
    return repr(reply[:200].decode(errors="replace"))
