"""Shared parts of the HTTP API: errors in OpenAI's form, and the parsing of JSON request bodies."""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse

from learnloop_service.environment.full_context import CODE as FULL_CONTEXT
from learnloop_service.training.engine.computing import EngineStopped, ModelDeleted, WorkerLost
from learnloop_service.training.engine.engine import StepConflict
from learnloop_service.training.engine.http.jobs import UnknownEvent, UnknownJob
from learnloop_service.training.engine.registry.checkpoints import CheckpointNotWritten, CorruptCheckpoint
from learnloop_service.training.engine.registry.model_record import (
    BadBaseModel,
    BadModelDirectory,
    BadModelName,
    CheckpointInUse,
    DamagedModel,
    ModelExists,
    UnknownModel,
)
from learnloop_service.training.engine.registry.object_store import StoreUnavailable
from learnloop_service.training.engine.sampling.requests import (
    ContextTooLong,
    GrammarFailed,
    NonFiniteLogits,
    NotSampledThere,
    OutOfMemory,
    SampleCancelled,
    SamplerUnavailable,
    UnknownWeights,
)
from learnloop_service.training.engine.text.tokens import BadConversation
from learnloop_service.training.engine.trainer.grpo_loss import BadOptions
from learnloop_service.training.engine.trainer.trajectories import BadTrajectory
from learnloop_service.training.protocol import strict_json
from learnloop_service.training.protocol.validation_message import message_of

M = TypeVar("M", bound=BaseModel)

MAX_DEPTH = 128
"""Maximum nesting depth of a body whose values are counted, because they are walked recursively."""
ON_LOOP_BYTES = 1 << 16
"""Size in bytes above which bodies are decoded in a thread. Decoding releases the GIL at every number with a fraction,
which means at every log-probability."""


class ApiError(Exception):
    """An error reply with its HTTP status, and the message, param and code of OpenAI's error object."""

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the HTTP response."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return JSONResponse(self.body(), self.status, headers)


_STATUS: Mapping[type[Exception], tuple[int, str]] = {
    UnknownModel: (404, "model_not_found"),
    UnknownWeights: (404, "model_not_found"),
    ModelDeleted: (404, "model_not_found"),
    UnknownJob: (404, "job_not_found"),
    UnknownEvent: (404, "event_not_found"),
    ModelExists: (409, "model_exists"),
    StepConflict: (409, "step_conflict"),
    CheckpointInUse: (409, "checkpoint_in_use"),
    BadModelName: (400, "bad_model_name"),
    BadOptions: (400, "bad_options"),
    BadTrajectory: (400, "bad_trajectory"),
    BadConversation: (400, "bad_conversation"),
    ContextTooLong: (400, FULL_CONTEXT),
    GrammarFailed: (400, "grammar_too_complex"),
    CorruptCheckpoint: (410, "torn_checkpoint"),
    DamagedModel: (503, "model_damaged"),
    BadModelDirectory: (422, "bad_model"),
    BadBaseModel: (422, "bad_model"),
    CheckpointNotWritten: (507, "checkpoint_not_written"),
    StoreUnavailable: (503, "store_unavailable"),
    OutOfMemory: (503, "out_of_memory"),
    EngineStopped: (503, "engine_stopped"),
    WorkerLost: (503, "worker_lost"),
    SampleCancelled: (503, "cancelled"),
    SamplerUnavailable: (503, "sampler_unavailable"),
    NotSampledThere: (422, "not_sampled_there"),
    NonFiniteLogits: (500, "non_finite_logits"),
}

FORESEEN: tuple[type[Exception], ...] = (ApiError, *_STATUS)
"""Errors that have a specific reply."""


def api_error(error: Exception) -> ApiError:
    """Return the reply to an error of the engine. Unforeseen errors become a 500 without internal details."""
    if isinstance(error, ApiError):
        return error
    for kind, (status, code) in _STATUS.items():
        if isinstance(error, kind):
            return ApiError(status, str(error), code=code)
    return ApiError(500, "the engine failed on this request; its log says why", code="internal_error")


async def read_body(request: Request, schema: type[M], max_bytes: int, *, max_values: int | None = None) -> M:
    """Parse the request's JSON body as `schema`. Raises ApiError: 413, or 400 with the offending field as `param`.

    `max_values` limits the number of values, because checking them takes far longer than sending them.
    """
    raw = await _read_bytes(request, max_bytes)
    if len(raw) > ON_LOOP_BYTES:
        return await asyncio.to_thread(_checked, raw, schema, max_values)
    return _checked(raw, schema, max_values)


def _checked(raw: bytes, schema: type[M], max_values: int | None) -> M:
    try:
        value = strict_json.loads(raw)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="bad_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object", code="bad_json")
    if max_values is not None:
        _check_shape(value, max_values)
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError, names: Mapping[str, str] = MappingProxyType({})) -> ApiError:
    """Return the reply to the first validation error. An error of the whole request names its parameter in the context.

    `names` maps parameters to the names under which the caller knows them.
    """
    fault = error.errors(include_url=False, include_input=False)[0]
    about = fault.get("ctx", {}).get("parameter")
    if about is not None:
        param = names.get(about, about)
        return ApiError(400, message_of(fault).replace(about, param), code=fault["type"], param=param)
    where = [str(part) for part in fault["loc"]]
    location = ".".join([names.get(where[0], where[0]), *where[1:]]) if where else None
    message = message_of(fault)
    return ApiError(400, f"{location}: {message}" if location else message, code="invalid_value", param=location)


def _check_shape(value: Any, most: int) -> None:
    level, count, depth = [value], 0, 0
    while level:
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        count, depth = count + len(level), depth + 1
        if count > most or depth > MAX_DEPTH:
            why = f"holds more than {most} values" if count > most else f"is nested more than {MAX_DEPTH} levels deep"
            raise ApiError(400, f"the body {why}", code="body_too_complex")


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise too_large
        chunks.append(chunk)
    return b"".join(chunks)
