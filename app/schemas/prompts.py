"""Bodies of the requests and responses about prompts."""

from datetime import datetime
from typing import Self

from pydantic import ConfigDict, Field

from learnloop_service.app.domain.stored_request import PromptReference
from learnloop_service.app.schemas.base import RequestBody, RequestPart, ResponseModel
from learnloop_service.app.schemas.run_request import PromptName
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
    replaces: dict[str, str] = Field(default_factory=dict)
    """The texts of an agent that the parts replace on the way to its model, as `POST /prompts/found` finds them; only
    for agents with `"prompt": "replace"`. `{original}` then stands for the text that its part replaces."""


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
    """Where it is from: `author` is who stored it, `parent` the prompt that it was made from, `improvement` what it was
    proposed for, and `found_in` the evaluation or run in whose requests it was found."""
    used_by: dict[str, list[str]]
    """What of the caller's has it, oldest first: ids of `runs`, `evaluations` and `releases`, names of `promotions`."""
    created_at: datetime
    """When it was stored."""
    links: dict[str, str]
    """Path of the prompt, as `self`."""


class PromptFound(PromptOut):
    """A prompt with the texts that an agent itself brings to its model."""

    requests: int
    """Number of different first requests that were compared."""
    omitted: dict[str, str]
    """Parts that are not in the prompt, each with the reason."""


class PromptTexts(ResponseModel):
    """The texts of a prompt."""

    parts: dict[str, str]
    """The texts by part."""
    replaces: dict[str, str]
    """The texts of an agent that they replace, by part; empty for agents that bring their prompt themselves."""


class PromptStored(ResponseModel):
    """A stored prompt."""

    prompt: PromptTexts
    """Its texts."""


class PromptChoice(RequestPart):
    """The prompt that a checkpoint is served with."""

    prompt: PromptName | None = None
    """A stored prompt: `NAME`, `NAME@VERSION` or its SHA-256. Default: the one that the name had with this checkpoint
    last, else that of the run which trained it. Null: the environment's own texts."""


class PromptUsed(ResponseModel):
    """The prompt that a model is used with."""

    sha256: str
    """Hash of its canonical JSON."""
    name: str | None
    """Its name; null if it was given by its hash and has none."""
    version: int | None
    """Its version under that name."""

    @classmethod
    def of_reference(cls, reference: PromptReference | None) -> Self | None:
        """Return the prompt as responses show it."""
        return None if reference is None else cls.of(reference)


class PromptsDeleted(ResponseModel):
    """A prompt that was deleted."""

    sha256: str
    """Its hash."""
    names: list[str]
    """Names that it had, as `NAME@VERSION`, newest first."""
