"""Schemas of `/v1`, for the OpenAPI file only: requests are validated by the model's server."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from learnloop_service.environment.json_type import Json


class _OpenAI(BaseModel):
    """OpenAI's objects can have further members."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class CompletionRequest(_OpenAI):
    """A chat completion to create, as in OpenAI's API. Parameters that are not supported are refused by name."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "learnloop/tiny",
                    "messages": [{"role": "user", "content": "On which day is the launch of Masibe?"}],
                    "max_completion_tokens": 64,
                }
            ]
        }
    )

    model: str
    """Name of the model: a base model, a run id, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name."""
    messages: list[dict[str, Json]] = Field(min_length=1)
    """The conversation so far, in OpenAI's form."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens to generate. Default: what fits into the context of the model."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Sampling temperature; 0 always takes the most likely token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the most likely tokens that together have this probability."""
    top_k: int | None = None
    """Sample from this many most likely tokens. Default: from all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Leave out tokens less likely than this share of the most likely one. Default: none."""
    seed: int | None = None
    """Seed of the sampling. On the service's engine and a CPU the same seed gives the same reply."""
    n: int = Field(default=1, ge=1)
    """Number of replies."""
    stop: str | list[str] | None = None
    """Text, or texts, at which the reply ends."""
    stream: bool = False
    """Whether to stream the reply as server-sent events."""
    stream_options: dict[str, Json] | None = None
    """`{"include_usage": true}` ends a stream with the number of tokens."""
    tools: list[dict[str, Json]] = Field(default_factory=list)
    """Functions that the model can call, in OpenAI's form."""
    tool_choice: str | dict[str, Json] | None = None
    """Whether the model has to call a function, and which. Default: `auto` if there are tools."""
    response_format: dict[str, Json] | None = None
    """What the reply must be: `{"type": "json_object"}`, or a JSON schema. Default: any text."""
    parallel_tool_calls: bool = True
    """Whether a reply can have several calls; otherwise it ends with its first one."""
    logprobs: bool = False
    """Whether to return the log-probability of each token. A token is written as `token_id:N`."""
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    """Number of most likely tokens to return at each position. Needs `logprobs`."""


class ResponseRequest(_OpenAI):
    """A response to create, as in OpenAI's Responses API. Parameters that are not supported are refused by name."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "learnloop/tiny",
                    "input": "On which day is the launch of Masibe?",
                    "max_output_tokens": 64,
                }
            ]
        }
    )

    model: str
    """Name of the model: a base model, a run id, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name."""
    input: str | list[dict[str, Json]]
    """What the user says, or the conversation so far as a list of items in OpenAI's form."""
    instructions: str | None = None
    """What stands before the conversation as a system message."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens to generate. Default: what fits into the context of the model."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature; 0 always takes the most likely token. Default: 1."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the most likely tokens that together have this probability. Default: 1."""
    tools: list[dict[str, Json]] = Field(default_factory=list)
    """Functions that the model can call, in OpenAI's form. Its built-in tools are not supported."""
    tool_choice: str | dict[str, Json] | None = None
    """Whether the model has to call a function, and which. Default: `auto` if there are tools."""
    stream: bool = False
    """Whether to stream the response as server-sent events."""
    previous_response_id: str | None = None
    """Id of an earlier response that this one continues."""


class ResponseObject(_OpenAI):
    """A response, as in OpenAI's Responses API."""

    id: str
    """Id of the response."""
    object: Literal["response"]
    """Always `response`."""
    created_at: float
    """When it was created, in Unix seconds."""
    status: str
    """`completed`, or `incomplete` if the maximum number of tokens was reached."""
    model: str
    """The exact checkpoint that replied, as `PROJECT/NAME@STEP`, or the base model."""
    output: list[dict[str, Json]]
    """What the model said and which functions it called, as items in OpenAI's form."""


class ChatCompletion(_OpenAI):
    """A chat completion, as in OpenAI's API."""

    id: str
    """Id of the completion."""
    object: Literal["chat.completion"]
    """Always `chat.completion`."""
    created: int
    """When it was created, in Unix seconds."""
    model: str
    """The exact checkpoint that replied, as `PROJECT/NAME@STEP`, or the base model."""
    choices: list[dict[str, Json]]
    """The replies, in OpenAI's form."""
    usage: dict[str, Json]
    """Number of prompt and completion tokens."""


class ModelObject(_OpenAI):
    """A model that can be sampled, as in OpenAI's API."""

    id: str
    """Name of the model: a base model, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name."""
    object: Literal["model"]
    """Always `model`."""
    created: int
    """When it was created, in Unix seconds."""
    owned_by: str
    """Project that it belongs to, or who made the base model."""
    backend: str
    """Name of the backend that has it."""


class ModelObjects(_OpenAI):
    """The models that can be sampled, as in OpenAI's API."""

    object: Literal["list"]
    """Always `list`."""
    data: list[ModelObject]
    """Base models, then trained models, then promoted names."""
