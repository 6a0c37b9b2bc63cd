"""Reads the conversations of a supervised job from a file in the data directory or from an allowed host.

URLs are supplied by clients, so only hosts configured by the operator are contacted, and redirects are not followed.
"""

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from learnloop.http_settings import tls
from learnloop_service.environment.bounded_http import AnswerLimits, AnswerRefused, AnswerTooLarge, BoundedTransport
from learnloop_service.environment.json_type import Json
from learnloop_service.training.engine.http.errors import ApiError

FETCH_S = 120.0
"""Longest time to fetch a whole file, in seconds, however slowly it arrives."""
_PARAM = "training_data_url"


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Reads JSONL files with one conversation per line."""

    data_dir: Path
    max_bytes: int
    hosts: Collection[str] = ()
    """Allowed hosts as `host`, or `host:port` if the port is not the scheme's default."""
    fetch_s: float = FETCH_S

    async def read(self, url: str) -> list[Json]:
        """Return the conversations behind a URL. Raises ApiError: 400 for an invalid one, 413, or 502 if it cannot be
        fetched."""
        try:
            scheme, host = urlsplit(url).scheme, _host(url)
        except ValueError:
            raise _refused() from None
        if scheme == "file" and not host:
            raw = await asyncio.to_thread(self._file, url)
        elif scheme in ("http", "https") and host in self.hosts:
            raw = await self._fetched(url)
        else:
            raise _refused()
        try:
            return [json.loads(line) for line in raw.split(b"\n") if line.strip()]
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the training data is not JSONL: {error}", param=_PARAM) from None

    def _file(self, url: str) -> bytes:
        path = Path(unquote(urlsplit(url).path))
        try:
            path = path.resolve()
            if not path.is_relative_to(self.data_dir.resolve()):
                raise _refused()
            with path.open("rb") as file:
                raw = file.read(self.max_bytes + 1)
        except (OSError, ValueError) as error:  # a NUL in the path raises ValueError
            why = error.strerror if isinstance(error, OSError) else error
            raise ApiError(400, f"the training data cannot be read: {why}", param=_PARAM) from None
        if len(raw) > self.max_bytes:
            raise self._too_large()
        return raw

    async def _fetched(self, url: str) -> bytes:
        transport = BoundedTransport(
            httpx.AsyncHTTPTransport(trust_env=False, verify=tls()), AnswerLimits(self.max_bytes)
        )
        try:
            async with (
                asyncio.timeout(self.fetch_s),
                httpx.AsyncClient(transport=transport, timeout=None, follow_redirects=False) as client,
                client.stream("GET", url) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise _no_data(f"{_host(url)} answered {response.status_code}")
                return await response.aread()
        except TimeoutError:
            raise _no_data(f"{_host(url)} took longer than {self.fetch_s:.0f} s") from None
        except AnswerTooLarge:
            raise self._too_large() from None
        except AnswerRefused as refused:
            raise _no_data(f"{_host(url)}: {refused}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _no_data(f"{_host(url)}: {type(error).__name__}") from None

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the training data is larger than {self.max_bytes} bytes", code="body_too_large")


def _host(url: str) -> str:
    """Return the URL's host, with its port if it has one. A URL with a user or password never matches an allowed
    host."""
    return urlsplit(url).netloc.lower()


def _refused() -> ApiError:
    return ApiError(
        400,
        "training_data_url must be a file:// URL below the engine's data directory, or lead to a host of its "
        "--training-data-host; send the conversations as training_data instead",
        code="invalid_value",
        param=_PARAM,
    )


def _no_data(why: str) -> ApiError:
    return ApiError(502, f"the training data cannot be fetched: {why}", code="training_data_unavailable", param=_PARAM)
