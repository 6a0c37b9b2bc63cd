"""Bodies of the requests and responses about asking a trained agent."""

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from learnloop_service.app.schemas.base import RequestBody, RequestPart, ResponseModel
from learnloop_service.app.schemas.run_request import EnvironmentChoice
from learnloop_service.environment.json_type import Json

_NO_TASK = {"run_id", "model", "checkpoint", "environment", "user", "train", "input"}


class AskRequest(RequestBody):
    """One task for the trained agent of a run, or for a model by name.

    Which fields describe the task depends on the environment: `email_search` takes a question and its inbox,
    `sales_email` a prospect and a company, any other environment its own `input`.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": "01KAJ3M7F5T2V8Q9X0C4D6E8GA",
                    "question": "On which day is the launch of Masibe?",
                    "inbox_address": "test.0.1@inbox.example",
                },
                {
                    "model": "learnloop/tiny",
                    "environment": {"name": "sales_email"},
                    "prospect": "Vijos Fivor",
                    "company": "Movoze",
                    "goal": "show a demo",
                    "graph": "test.0.17",
                },
            ]
        }
    )

    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    """Id of the run whose agent does the task. Give either this or `model`."""
    model: str | None = Field(default=None, min_length=1, max_length=300)
    """Name of the model that does the task: a base model, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name. Give
    either this or `run_id`."""
    checkpoint: int | None = Field(default=None, ge=0, lt=2**31)
    """Step of the checkpoint to use. Default: the best one of the run, or the newest one of the model."""
    environment: EnvironmentChoice | None = None
    """The environment of the task. Default: that of the run; with `model`, `email_search`."""
    user: str | None = Field(default=None, min_length=1, max_length=256)
    """Key of the user who asks; only its hash is stored. It decides which checkpoint answers while a release of a
    promoted name is live, and `POST /users/delete` finds the answer by it. Default: the header `Learnloop-User`."""
    train: bool | None = None
    """Whether the task can become a training task (docs/schedules.md). Default: only in the projects of
    `LEARNLOOP_TRAIN_ON_PROJECTS`."""
    input: dict[str, Json] | None = None
    """The whole task in the environment's own form, instead of the fields below."""
    question: str | None = Field(default=None, min_length=1, max_length=10_000)
    """email_search: the question to answer."""
    inbox_address: str | None = Field(default=None, max_length=320)
    """email_search: the address of the inbox to search, such as `test.0.1@inbox.example` for a synthetic one. An
    imported inbox is chosen by the environment, and needs no address."""
    query_date: str | None = Field(default=None, max_length=40)
    """email_search: the date on which the question is asked, as YYYY-MM-DD. Default: a date near the newest email."""
    prospect: str | None = Field(default=None, max_length=1_000)
    """sales_email: name of the person to write to."""
    company: str | None = Field(default=None, max_length=1_000)
    """sales_email: company of the prospect."""
    role: str | None = Field(default=None, max_length=1_000)
    """sales_email: job title of the prospect."""
    goal: str | None = Field(default=None, max_length=1_000)
    """sales_email: what the email should achieve. Default: "book a call"."""
    start: str | list[str] | None = None
    """sales_email: id of the node to start from, or a list of up to 10. Default: the first Customer Job that leads to a
    product."""
    graph: str | None = Field(default=None, max_length=200)
    """sales_email: name of a synthetic graph, such as `test.0.17`. Not needed if the run has its own graph."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.run_id is None) == (self.model is None):
            raise ValueError("give either run_id or model")
        if self.input is not None and self._named():
            raise ValueError(f"input is the whole task: put {', '.join(self._named())} into it")
        return self

    def _named(self) -> dict[str, Json]:
        return self.model_dump(exclude=_NO_TASK, exclude_none=True)

    def task(self) -> dict[str, Json]:
        """Return the task for the environment."""
        return self._named() if self.input is None else self.input


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
