"""What request and response bodies have in common. A field's docstring is its description in the OpenAPI file."""

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from app.db.json_text import flaw
from app.domain.names import NAME_PATTERN

Json = Any
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Item = TypeVar("Item")


class ResponseModel(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class RequestPart(BaseModel):
    """An object inside a request body. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class RequestBody(RequestPart):
    """A whole request body, which must also be JSON that Postgres can store."""

    @model_validator(mode="before")
    @classmethod
    def _without_flaw(cls, value: Any) -> Any:
        if (why := flaw(value)) is not None:
            raise ValueError(why)
        return value


class Page(ResponseModel, Generic[Item]):
    """One page of a list."""

    items: list[Item]
    next_cursor: str | None
    """Pass it as `cursor` to get the next page; null on the last page."""
