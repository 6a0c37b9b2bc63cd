"""Bodies of requests whose protocol is not ours: handlers read them themselves, and the OpenAPI file describes them."""

from pydantic import BaseModel

from app.errors import InvalidRequest
from environment.json_type import Json
from training.protocol import strict_json


class BadBody(InvalidRequest):
    """OpenAI answers with 400 here, not 422."""

    status = 400


def described_body(body: type[BaseModel]) -> dict[str, Json]:
    """For the OpenAPI file: what a handler takes that reads the body by itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}


def json_object(raw: bytes) -> dict[str, Json]:
    """The JSON object of a body. Raises BadBody."""
    try:
        body = strict_json.loads(raw)
    except ValueError as error:
        raise BadBody(("body",), f"The body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadBody(("body",), "The body must be a JSON object.")
    return body
