"""Request bodies that handlers read themselves, described for the OpenAPI file: files, and other vendors' protocols."""

from pydantic import BaseModel

from learnloop_service.app.db.json_text import nesting_flaw
from learnloop_service.app.errors import InvalidRequest
from learnloop_service.environment.json_type import Json
from learnloop_service.training.protocol import strict_json


class BadBody(InvalidRequest):
    """The body is invalid. The status is 400 as in OpenAI's API, not 422."""

    status = 400


def described_body(body: type[BaseModel]) -> dict[str, Json]:
    """Return the OpenAPI description of a body that its handler reads itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}


def file_body(description: str, **examples: tuple[str, str]) -> dict[str, Json]:
    """Return the OpenAPI description of a body that is a file. The examples are a summary and a text each."""
    described = {name: {"summary": summary, "value": text} for name, (summary, text) in examples.items()}
    content = {"schema": {"type": "string", "format": "binary"}, "examples": described}
    body = {"description": description, "required": True, "content": {"application/octet-stream": content}}
    return {"requestBody": body}


def json_object(raw: bytes) -> dict[str, Json]:
    """Return the JSON object in a body. Raises BadBody."""
    try:
        body = strict_json.loads(raw)
    except ValueError as error:
        raise BadBody(("body",), f"The body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadBody(("body",), "The body must be a JSON object.")
    if (why := nesting_flaw(body)) is not None:
        raise BadBody(("body",), f"The body is refused: {why}.")
    return body
