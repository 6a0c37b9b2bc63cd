"""How the service is reached: its URL, the API key, and whether through a proxy."""

import os
from typing import Any
from urllib.parse import urlsplit

URL_VARIABLE = "LEARNLOOP_URL"
KEY_VARIABLE = "LEARNLOOP_API_KEY"
"""Variable with the API key. The key of a command cannot be an argument: other users of the machine can read those."""
DEFAULT_URL = "http://127.0.0.1:8000"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def http_settings(base_url: str | None, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of both kinds of httpx clients. The URL and the key default to the environment's.

    Raises ValueError for an invalid base URL.
    """
    url = (os.environ.get(URL_VARIABLE) or DEFAULT_URL) if base_url is None else base_url
    key = api_key or os.environ.get(KEY_VARIABLE)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not the URL of a service, such as {DEFAULT_URL}")
    # A proxy configured in the environment cannot reach this machine's loopback.
    outside = parts.hostname not in _LOOPBACK
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return {"base_url": url.rstrip("/"), "headers": headers, "timeout": timeout_s, "trust_env": outside}
