"""Finds the path that a client meant when it asked for one that does not exist: base URLs often have a slash or a `/v1`
too many."""

from collections.abc import Callable


def tidy(path: str) -> str:
    """Return the path without empty segments, a slash at its end, and a second `/v1`. No route has any of these."""
    return f"/{'/'.join(filter(None, path.split('/')))}".replace("/v1/v1/", "/v1/")


def meant_path(path: str, exists: Callable[[str], bool]) -> str | None:
    """Return the path that exists and was probably meant, or None."""
    plain = tidy(path)
    return next((candidate for candidate in (plain, f"/v1{plain}") if candidate != path and exists(candidate)), None)
