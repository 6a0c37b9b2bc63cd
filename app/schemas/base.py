"""Common parts of request and response bodies. A field's docstring is its description in the OpenAPI file."""

from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from learnloop_service.app.db.json_text import flaw
from learnloop_service.app.domain.names import NAME_PATTERN
from learnloop_service.app.domain.unknown_name import unknown
from learnloop_service.training.protocol.validation_message import message_of

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Item = TypeVar("Item")
_UNKNOWN_FIELD = "extra_forbidden"
"""Pydantic's error type for an unknown field."""
_EXPLAINED = 10
"""Maximum number of unknown fields that are explained per object. A body can have a hundred thousand."""


class ResponseModel(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def of(cls, source: object) -> Self:
        """Return the body whose fields are the attributes of `source`, such as a row's."""
        return cls.model_validate(source, from_attributes=True)

    @classmethod
    def shown_of(cls, row: Any) -> dict[str, Any]:
        """Return the values of the row's columns that are shown under their names."""
        return {name: getattr(row, name) for name in cls.model_fields if name in row.__mapper__.column_attrs}


class RequestPart(BaseModel):
    """An object inside a request body. Unknown fields are refused, with the name that was probably meant."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="wrap")
    @classmethod
    def _suggests(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return validate(value)
        except ValidationError as error:
            raise ValidationError.from_exception_data(error.title, _lines(error, cls.field_names())) from None

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the names of the fields as they are sent."""
        return [field.alias or name for name, field in cls.model_fields.items()]


class RequestBody(RequestPart):
    """A whole request body, which must also be JSON that Postgres can store."""

    @model_validator(mode="before")
    @classmethod
    def _without_flaw(cls, value: Any) -> Any:
        if (why := flaw(value)) is not None:
            raise ValueError(why)
        return value


class StartedOut(ResponseModel):
    """Something that someone started."""

    started_by: dict[str, str | None] | None = None
    """The API key that started it, by `id` and `name`, and as `order` what carried out its wish, such as `schedule:ID`.
    Null without a key, and for what an earlier version started."""


class Page(ResponseModel, Generic[Item]):
    """One page of a list."""

    # Page[Item] is a separate class that inherits no docstring, and pydantic would search every frame for its source.
    model_config = ConfigDict(json_schema_extra={"description": "One page of a list."}, use_attribute_docstrings=False)

    items: list[Item] = Field(description="The items of this page.")
    next_cursor: str | None = Field(description="Pass it as `cursor` to get the next page; null on the last page.")


def _lines(error: ValidationError, fields: list[str]) -> list[InitErrorDetails]:
    """Return the errors, with more helpful messages for the first unknown fields of this object."""
    lines, explained = [], 0
    for fault in error.errors(include_url=False):
        kind, message, loc = fault["type"], message_of(fault), fault["loc"]
        if kind == _UNKNOWN_FIELD and len(loc) == 1 and explained < _EXPLAINED:
            message = unknown("field", str(loc[0]), fields)
            explained += 1
        lines.append(InitErrorDetails(type=PydanticCustomError(kind, message), loc=loc, input=fault["input"]))
    return lines
