"""What an OpenEnv server tells of its actions, at `/schema`."""

import json
from collections.abc import Mapping

import httpx

from environment.access import Access
from environment.base import EpisodeFailed, Json

_TIMEOUT_S = 10.0
_MAX_BYTES = 1_000_000


async def schema_of_actions(url: str, headers: Mapping[str, str], access: Access) -> Mapping[str, Json]:
    """The JSON schema of the actions of the server at that URL. Raises EpisodeFailed."""
    at = f"{url}/schema"
    client = httpx.AsyncClient(
        transport=access.http_transport(), headers=dict(headers), timeout=_TIMEOUT_S, trust_env=False
    )
    try:
        async with client, client.stream("GET", at) as response:
            if response.status_code != httpx.codes.OK:
                raise EpisodeFailed(f"{at} answered {response.status_code}: is it an OpenEnv server?")
            content = await _content(response)
    except EpisodeFailed:
        raise
    except Exception as error:  # what is not allowed is refused by errors of the access
        raise EpisodeFailed(f"{at} cannot be read: {type(error).__name__}: {error}") from error
    try:
        schema = json.loads(content)["action"]
        if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
            raise TypeError("no object with properties")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise EpisodeFailed(f"{at} tells no schema of actions: is it an OpenEnv server?") from error
    return schema


async def _content(response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _MAX_BYTES:
            raise EpisodeFailed(f"{response.url} answered with more than {_MAX_BYTES:,} bytes")
    return bytes(content)
