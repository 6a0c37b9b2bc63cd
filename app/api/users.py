"""The user for whom a request is made: named by the body or by a header, and hashed before anything else sees it."""

from typing import Annotated

from fastapi import Depends, Header

from learnloop_service.app.api.dependencies import CurrentService
from learnloop_service.app.api.raw_bodies import BadBody
from learnloop_service.app.releases.split import Requester
from learnloop_service.environment.json_type import Json

MAX_USER = 256
"""Maximum length of a user's key, in characters."""
_UserHeader = Annotated[
    str | None,
    Header(
        alias="Learnloop-User",
        min_length=1,
        max_length=MAX_USER,
        description="Key of the user for whom the request is made, if the body names none. It is stored as a hash only",
    ),
]


class Users:
    """Finds and hashes the user of a request."""

    def __init__(self, service: CurrentService, header: _UserHeader = None) -> None:
        self._hasher = service.users
        self._header = header

    def hash_of(self, user: str | None) -> str | None:
        """Return the hash of the user that the body names, else of that in the header; None without either."""
        name = user or self._header
        return None if name is None else self._hasher.hash_of(name)

    def of_openai(self, body: dict[str, Json]) -> Requester:
        """Return who a request of OpenAI's APIs is made for. Raises BadRequestBody."""
        names = ("user", "safety_identifier")
        return Requester(self.hash_of(next((user for name in names if (user := _text(body, name))), None)))

    def of_anthropic(self, body: dict[str, Json]) -> Requester:
        """Return who a request of Anthropic's API is made for. Raises BadRequestBody."""
        metadata = body.get("metadata")
        return Requester(self.hash_of(_text(metadata, "user_id", "metadata") if isinstance(metadata, dict) else None))


CurrentUsers = Annotated[Users, Depends(Users)]


def _text(body: dict[str, Json], name: str, *where: str) -> str | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_USER:
        path = ".".join((*where, name))
        raise BadBody(("body", *where, name), f"{path} must be a string of 1 to {MAX_USER} characters")
    return value
