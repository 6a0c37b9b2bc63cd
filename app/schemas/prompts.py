"""Bodies of the requests and responses about prompts."""

from datetime import datetime

from pydantic import ConfigDict

from learnloop_service.app.schemas.base import RequestBody, ResponseModel
from learnloop_service.environment.json_type import Json


class PromptToStore(RequestBody):
    """The texts that an agent brings to its model, as named parts: at most 64, with 32,768 bytes together."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "parts": {
                        "system": "{original}\nQuote the sentence that holds the answer.",
                        "tool:search_inbox": "Search by one or two rare words. {original}",
                    }
                }
            ]
        }
    )

    parts: dict[str, str]
    """The texts by part: `system` is the first system message, `tool:NAME` the description of a tool,
    `tool:NAME.ARGUMENT` that of one of its arguments. An agent of your own can have others, such as `skill:refunds`. A
    part that is missing stays as the environment has it. `{original}` stands for the environment's own text, and an
    environment can have further placeholders: `{inbox_address}`, `{query_date}` and `{max_turns}` in `email_search`.
    `{{name}}` stands for `{name}` itself."""


class PromptOut(ResponseModel):
    """A version of a stored prompt."""

    name: str
    """Its name."""
    version: int
    """Its version under this name, from 1. What the newest version has already makes no new one."""
    sha256: str
    """Hash of its canonical JSON, in hexadecimal."""
    count: int
    """Number of its parts."""
    origin: dict[str, Json]
    """Where it is from: `author` is who stored it."""
    used_by: dict[str, list[str]]
    """Ids of the caller's `runs` and `evaluations` that have it, oldest first."""
    created_at: datetime
    """When it was stored."""
    links: dict[str, str]
    """Path of the prompt, as `self`."""


class PromptTexts(ResponseModel):
    """The texts of a prompt."""

    parts: dict[str, str]
    """The texts by part."""


class PromptStored(ResponseModel):
    """A stored prompt."""

    prompt: PromptTexts
    """Its texts."""


class PromptUsed(ResponseModel):
    """The prompt that rollouts were made with."""

    sha256: str
    """Hash of its canonical JSON."""
    name: str | None
    """Its name; null if it was given by its hash and has none."""
    version: int | None
    """Its version under that name."""


class PromptsDeleted(ResponseModel):
    """A prompt that was deleted."""

    sha256: str
    """Its hash."""
    names: list[str]
    """Names that it had, as `NAME@VERSION`, newest first."""
