"""Recipes for data: where the emails and questions come from, and which of them to use."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from learnloop_mail.preparation.enron import KNOWN_BAD_QUESTIONS
from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.domain.yaml_file import BadYamlFile, read_object
from learnloop_service.training.protocol.validation_message import message_of

TEMPLATES = "templates"
LLM = "llm"
NONE = "none"
_Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
_Count = Annotated[int, Field(ge=1)]


class BadRecipe(ValueError):
    """The file or a setting does not describe a data set."""


class Recipe(BaseModel):
    """All settings of `learnloop data prepare`. Paths are relative to the working directory."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, StringConstraints(pattern=DATASET_PATTERN)]
    """Name for use in runs. Preparing again under the same name makes its next version."""
    emails: _Text | Annotated[list[_Text], Field(min_length=1)]
    """Mail (mbox, Maildir, EML), a data set on disk, or the id of one on the Hugging Face hub."""
    questions: _Text = TEMPLATES
    """`templates`, `llm`, `none`, a data set on disk, or the id of one on the hub."""
    inbox: _Text | None = None
    """If given, only emails from or to this address, and questions about them, are used."""
    max_emails: _Count | None = None
    max_body_characters: _Count | None = None
    max_recipients: _Count | None = None
    drop_copies: bool = False
    """Whether to keep only one of the emails with the same sender, subject and body."""
    max_messages: _Count | None = 1
    """Maximum number of emails that an answer can depend on, for questions of a data set."""
    exclude_questions: tuple[int, ...] = KNOWN_BAD_QUESTIONS
    """Ids of a data set's questions to leave out."""
    min_realism: float | None = Field(None, ge=0, le=1)
    limit: _Count | None = None
    """Maximum number of training questions."""
    held_out_limit: _Count | None = None
    """Maximum number of questions for validation, and the same for test."""
    shuffle_seed: int | None = Field(None, ge=0)
    """Seed for the order of questions; None keeps the source's order."""
    question_count: Annotated[int, Field(ge=3, le=100_000)] = 300
    """Number of questions to make, for all splits together."""
    question_seed: int = Field(0, ge=0)
    """Seed for choosing the emails to ask about."""
    question_model: _Text | None = None
    """The listed model that writes the questions; None for the first on the list."""

    @field_validator("exclude_questions", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _fits(self) -> "Recipe":
        if self.question_model is not None and self.questions != LLM:
            raise ValueError(f"question_model is for questions: {LLM}")
        return self

    @property
    def sources(self) -> list[str]:
        """The sources of the emails."""
        return [self.emails] if isinstance(self.emails, str) else list(self.emails)


def read_recipe(path: Path | None, flags: Mapping[str, Any]) -> Recipe:
    """Return the recipe in a YAML file, if one is given, overridden by flags that are not None. Raises BadRecipe."""
    try:
        values = {} if path is None else read_object(path, "the settings of a data set, such as `emails: archive.mbox`")
        return Recipe.model_validate(values | {key: value for key, value in flags.items() if value is not None})
    except ValidationError as error:
        raise BadRecipe("; ".join(map(_fault, error.errors()))) from error
    except BadYamlFile as error:
        raise BadRecipe(str(error)) from error


def _fault(error: Any) -> str:
    setting = str(error["loc"][0]) if error["loc"] else ""
    if error["type"] == "extra_forbidden":
        return f"unknown setting {setting!r}; there are: {', '.join(Recipe.model_fields)}"
    if error["type"] == "missing":
        return f"{setting} is missing"
    return f"{setting + ': ' if setting else ''}{message_of(error)}"
