"""Bodies of the requests and responses about asking a trained agent."""

from typing import Self

from pydantic import Field, model_validator

from app.schemas.base import Json, RequestBody, RequestPart, ResponseModel
from app.schemas.run_request import EnvironmentChoice


class AskRequest(RequestBody):
    """One task for the trained agent of a run, or for a model by name.

    Which fields describe the task depends on the environment: `email_search` takes a question and its inbox,
    `sales_email` a prospect and a company, any other environment its own `input`.
    """

    run_id: str | None = Field(default=None, min_length=1, max_length=64)
    """The run whose agent does the task. Give either this or `model`."""
    model: str | None = Field(default=None, min_length=1, max_length=300)
    """A base model, `PROJECT/NAME`, `PROJECT/NAME@STEP`, or a promoted name."""
    checkpoint: int | None = Field(default=None, ge=0, lt=2**31)
    """Step of the checkpoint to use. Default: the best one of the run."""
    environment: EnvironmentChoice | None = None
    """Default: that of the run."""
    input: dict[str, Json] | None = None
    """The whole task in the environment's own form, instead of the fields below."""
    question: str | None = Field(default=None, min_length=1, max_length=10_000)
    """email_search: the question to answer."""
    inbox_address: str | None = Field(default=None, max_length=320)
    """email_search: the address of the inbox to search."""
    query_date: str | None = Field(default=None, max_length=40)
    """email_search: the date on which the question is asked."""
    prospect: str | None = Field(default=None, max_length=1_000)
    """sales_email: name of the person to write to."""
    company: str | None = Field(default=None, max_length=1_000)
    """sales_email: company of the prospect."""
    role: str | None = Field(default=None, max_length=1_000)
    """sales_email: job title of the prospect."""
    goal: str | None = Field(default=None, max_length=1_000)
    """sales_email: what the email should achieve."""
    start: str | list[str] | None = None
    """sales_email: ids of the nodes to start from."""
    graph: str | None = Field(default=None, max_length=200)
    """sales_email: name of a synthetic graph, such as `test.0.17`."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.run_id is None) == (self.model is None):
            raise ValueError("give either run_id or model")
        if self.input is not None and self._named():
            raise ValueError(f"input is the whole task: put {', '.join(self._named())} into it")
        return self

    def _named(self) -> dict[str, Json]:
        return self.model_dump(exclude={"run_id", "model", "checkpoint", "environment", "input"}, exclude_none=True)

    def task(self) -> dict[str, Json]:
        """What the environment is asked."""
        return self._named() if self.input is None else self.input


class InvokeParameters(RequestPart):
    """The question to answer."""

    question: str = Field(min_length=1, max_length=10_000)
    inbox_address: str | None = Field(default=None, max_length=320)
    """The address of the inbox to search."""
    query_date: str | None = Field(default=None, max_length=40)
    """The date on which the question is asked."""


class InvokeRequest(RequestBody):
    """A question in the form of a ZenML pipeline deployment."""

    parameters: InvokeParameters


class Email(ResponseModel):
    """An email that the agent wrote. It is plain text: escape it before showing it on a page."""

    subject: str
    body: str
    citations: list[str]
    """Ids of the cited nodes."""


class AskOut(ResponseModel):
    """The agent's answer."""

    question: str | None
    """Null if the task was not a question."""
    answer: str | None
    """The answer, or the body of the email."""
    source_ids: list[str]
    """Ids of the emails or nodes that the agent cites."""
    success: bool
    """Whether the agent gave an answer. There is no reference to say whether it is right."""
    email: Email | None = None
    trajectory_id: str
    """The stored trajectory, at `GET /trajectories/{trajectory_id}`."""
    model: str
    step: int | None


class InvokeOut(ResponseModel):
    """The agent's answer."""

    question: str
    answer: str | None
    source_ids: list[str]
    """Ids of the emails that the agent cites."""
    success: bool
    """Whether the agent gave an answer."""
