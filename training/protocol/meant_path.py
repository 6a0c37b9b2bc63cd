"""The path that a client meant by one that does not exist. A base URL with a slash or a `/v1` too many is common."""

from collections.abc import Callable


def tidy(path: str) -> str:
    """Return the path without empty segments, a slash at its end, and a second `/v1`. Nothing exists at others."""
    return f"/{'/'.join(filter(None, path.split('/')))}".replace("/v1/v1/", "/v1/")


def meant_path(path: str, exists: Callable[[str], bool]) -> str | None:
    """Return the path that exists and was probably meant, or None."""
    plain = tidy(path)
    return next((each for each in (plain, f"/v1{plain}") if each != path and exists(each)), None)
