"""Bodies of the requests and responses about uploaded mail."""

from pydantic import ConfigDict, Field

from learnloop_service.app.schemas.base import RequestBody, ResponseModel


class InboxStored(ResponseModel):
    """A stored inbox. Name it in `environment.config.inbox` of a learn-loop."""

    name: str
    """Its name."""
    version: int
    """Its version under this name, from 1. Emails that the newest version has already make no new one."""
    sha256: str
    """Hash of the emails, in hexadecimal."""
    emails: int
    """Number of emails."""
    first: str | None
    """Day of the oldest email, such as `2001-05-15`; null if none has a date."""
    last: str | None
    """Day of the newest email."""
    duplicates: int
    """Emails that were left out because an earlier one has the same Message-ID."""
    unreadable: int
    """Emails that were left out because they cannot be read, or, in JSON Lines, have no `message_id`."""
    truncated: int
    """Emails of which only the beginning is kept."""
    undated: int
    """Emails without a date."""
    links: dict[str, str]
    """Path of the list of its versions, as `versions`."""


class QuestionsRequest(RequestBody):
    """How many questions to make about an inbox."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"count": 300}]})

    count: int = Field(default=300, ge=3, le=1_000)
    """Maximum number of questions. An email gives up to two, and some give none."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Decides which emails they are about."""
