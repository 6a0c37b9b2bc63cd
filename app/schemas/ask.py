"""Bodies of the requests and responses about asking a trained agent."""

from typing import Any, Self

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from learnloop_service.app.db.json_text import flaw
from learnloop_service.app.schemas.base import RequestBody, RequestPart, ResponseModel
from learnloop_service.app.schemas.run_request import EnvironmentChoice, PromptName
from learnloop_service.app.schemas.task_fields import describe_tasks, task_fields, wrong_field
from learnloop_service.environment.json_type import Json


class AskRequest(RequestBody):
    """One task for the trained agent of a run, or for a model by name.

    The environment decides which further fields describe the task: they are those of its `task` in
    `GET /environments`. Those of the environments that are installed here are listed below, each after its environment.
    Tasks of an environment that does not say what they are made of are given as `input`.
    """

    model_config = ConfigDict(json_schema_extra=describe_tasks)

    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    """Id of the run whose agent does the task. Give either this or `model`."""
    model: str | None = Field(default=None, min_length=1, max_length=300)
    """Name of the model that does the task: a base model, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name. Give
    either this or `run_id`."""
    checkpoint: int | None = Field(default=None, ge=0, lt=2**31)
    """Step of the checkpoint to use. Default: the best one of the run, or the newest one of the model."""
    environment: EnvironmentChoice | None = None
    """The environment of the task. Default: that of the run; with `model`, `email_search`."""
    prompt: PromptName | None = None
    """A stored prompt: `NAME`, `NAME@VERSION` or its SHA-256. Default: that of the promoted name, else of the run that
    trained the model. Null: the environment's own texts."""
    user: str | None = Field(default=None, min_length=1, max_length=256)
    """Key of the user who asks; only its hash is stored. It decides which checkpoint answers while a release of a
    promoted name is live, and `POST /users/delete` finds the answer by it. Default: the header `Learnloop-User`."""
    train: bool | None = None
    """Whether the task can become a training task (docs/schedules.md). Default: only in the projects of
    `LEARNLOOP_TRAIN_ON_PROJECTS`."""
    input: dict[str, Json] | None = None
    """The whole task in the environment's own form, instead of its fields beside these."""
    _named: dict[str, Json] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.run_id is None) == (self.model is None):
            raise ValueError("give either run_id or model")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _with_its_task(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Keep the fields of the task apart from those of the request, which is then checked as any other is."""
        if not isinstance(value, dict):
            return validate(value)
        if (why := flaw(value)) is not None:
            raise ValueError(why)
        names = task_fields() - cls.model_fields.keys()
        request = validate({name: content for name, content in value.items() if name not in names})
        request._named = {name: content for name, content in value.items() if name in names and content is not None}
        if request.input is not None and request._named:
            raise ValueError(f"input is the whole task: put {', '.join(request._named)} into it")
        return request

    @classmethod
    def field_names(cls) -> list[str]:
        return [*super().field_names(), *sorted(task_fields() - cls.model_fields.keys())]

    def task(self) -> dict[str, Json]:
        """Return the task for the environment."""
        return self._named if self.input is None else self.input

    def wrong_field(self, environment: str) -> tuple[str, str] | None:
        """Return a field that describes no task of that environment, with what is wrong; None if all are right."""
        return wrong_field(environment, self._named, list(type(self).model_fields))


class InvokeParameters(RequestPart):
    """The question to answer."""

    question: str = Field(min_length=1, max_length=10_000)
    """The question to answer."""
    inbox_address: str | None = Field(default=None, max_length=320)
    """The address of the inbox to search, such as `test.0.1@inbox.example` for a synthetic one."""
    query_date: str | None = Field(default=None, max_length=40)
    """The date on which the question is asked, as YYYY-MM-DD. Default: a date near the newest email."""


class InvokeRequest(RequestBody):
    """A question in the form of a ZenML pipeline deployment."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "parameters": {
                        "question": "On which day is the launch of Masibe?",
                        "inbox_address": "test.0.1@inbox.example",
                    }
                }
            ]
        }
    )

    parameters: InvokeParameters
    """The question and its inbox."""


class Email(ResponseModel):
    """An email that the agent wrote. It is plain text: escape it before showing it on a page."""

    subject: str
    """Subject of the email."""
    body: str
    """Body of the email, as plain text."""
    citations: list[str]
    """Ids of the cited nodes of the graph."""


class AskOut(ResponseModel):
    """The agent's answer."""

    question: str | None
    """The question that was asked. Null if the task was not a question."""
    answer: str | None
    """The answer, or the body of the email. Null if the agent gave none."""
    source_ids: list[str]
    """Ids of the emails or nodes that the agent cites."""
    success: bool
    """Whether the agent gave an answer, right or wrong."""
    expected: str | None = None
    """The right answer, if the question is one of the run's held-out scenarios with a reference answer; else null."""
    correct: bool | None = None
    """Whether the answer is the expected one; null if none is known."""
    sources_correct: bool | None = None
    """Whether the answer cites exactly the expected sources; null if none are known."""
    why_no_success: str | None = None
    """Why the answer is not the right one, in a clause of the environment such as "no source cited; expected pebro";
    null if it is right or that is not known, or if the environment does not say."""
    note: str | None = None
    """What to know about the answer: why there is none, or that it has no source. Null if there is nothing to say."""
    email: Email | None = None
    """The email, in environments that write emails and if the agent finished one; otherwise null."""
    trajectory_id: str
    """Id of the stored trajectory, for `GET /trajectories/{trajectory_id}`."""
    model: str
    """Name of the model that answered."""
    step: int | None
    """Step of the checkpoint that answered. Null for a base model, or for the newest checkpoint of a model."""
    release_id: str | None = None
    """Id of the release that decided which checkpoint answers; null if the name has none."""


class InvokeOut(ResponseModel):
    """The agent's answer."""

    question: str
    """The question that was asked."""
    answer: str | None
    """The answer. Null if the agent gave none. If no inbox has email of the address, it says so."""
    source_ids: list[str]
    """Ids of the emails that the agent cites."""
    success: bool
    """Whether the agent gave an answer."""
