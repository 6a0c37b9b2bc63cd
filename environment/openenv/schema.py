"""The action schema that an OpenEnv server publishes at `/schema`."""

import asyncio
import json
from collections.abc import Mapping

import httpx

from learnloop_service.environment.access import Access
from learnloop_service.environment.base import EpisodeFailed, Json
from learnloop_service.environment.bounded_http import AnswerLimits, BoundedTransport

_TIMEOUT_S = 10.0
_MAX_BYTES = 1_000_000


async def schema_of_actions(url: str, headers: Mapping[str, str], access: Access) -> Mapping[str, Json]:
    """Return the JSON schema of the actions of the server at that URL. Raises EpisodeFailed."""
    at = f"{url}/schema"
    transport = BoundedTransport(access.http_transport(), AnswerLimits(_MAX_BYTES))
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            httpx.AsyncClient(transport=transport, headers=dict(headers), timeout=None, trust_env=False) as client,
            client.stream("GET", at) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise EpisodeFailed(f"{at} answered {response.status_code}: is it an OpenEnv server?")
            content = await response.aread()
    except EpisodeFailed:
        raise
    except TimeoutError:
        raise EpisodeFailed(f"{at} did not answer within {_TIMEOUT_S:g} s") from None
    except Exception as error:  # The access has its own errors for what is not allowed.
        raise EpisodeFailed(f"{at} cannot be read: {type(error).__name__}: {error}") from error
    try:
        schema = json.loads(content)["action"]
        if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
            raise TypeError("no object with properties")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EpisodeFailed(f"{at} tells no schema of actions: is it an OpenEnv server?") from error
    return schema
