"""Parameters of an import, and the body of the response about an imported file."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from learnloop_service.app.domain.names import DATASET_PATTERN
from learnloop_service.app.schemas.base import ResponseModel

_Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]+$")]


class ImportParameters(BaseModel):
    """How a file is to be understood."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str = Field(pattern=DATASET_PATTERN)
    """Name of what it becomes: letters, digits, `-` and `_`."""
    kind: Literal["questions", "conversations"] | None = None
    """What it holds. Default: by its content."""
    preview: bool = False
    """Whether to store nothing, and only say what it would become, with its first rows."""
    question: _Text | None = None
    """Column of a table with the questions. Default: one with a usual name."""
    answer: _Text | None = None
    """Column of a table with the expected answers. Default: one with a usual name."""
    facts: _Text | None = None
    """Column of a table with what the agent reads. Default: one with a usual name, or none."""
    header: bool = True
    """Whether the first row of a table has the names of the columns."""
    encoding: _Text | None = None
    """Encoding of a table, such as `gb18030`. Default: by its content."""
    opinion: _Text | None = None
    """Field or score of conversations that counts as the opinion. Default: all known."""
    threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Least number of a conversation that was liked. Default: thumbs only."""
    user: _Text | None = None
    """Field of conversations with the user's key. Default: the usual ones."""
    unrated: Literal["leave_out", "demonstrations", "tasks"] = "leave_out"
    """What becomes of conversations without an opinion."""


class LeftOut(ResponseModel):
    """Lines that were not taken for the same reason."""

    reason: str
    """Why."""
    count: int
    """How many."""
    lines: list[int]
    """Numbers of the first five of them, from 1: rows as a spreadsheet counts them, or lines or items of JSON."""


class ImportedDemonstrations(ResponseModel):
    """The demonstrations: what was liked. Name them in `warm_start.demonstrations.dataset` of a learn-loop."""

    name: str
    """Their name."""
    version: int | None
    """Their version under this name, from 1; null in a preview."""
    sha256: str
    """Their hash, in hexadecimal."""
    count: int
    """How many."""


class ImportedTasks(ImportedDemonstrations):
    """The tasks: questions, or what was disliked. Name them in `environment.config.scenarios` of a learn-loop."""

    environment: str
    """The environment that they are for."""
    train: int
    """How many are trained on."""
    validation: int
    """How many are for validation."""
    test: int
    """How many are for the test."""
    judge: str
    """The judge that fits: `reference` if each task has the answer that would have been right, otherwise `ruler`."""


class ImportedConversations(ResponseModel):
    """What a file of conversations has."""

    conversations: int
    """Lines that are a conversation."""
    forms: dict[str, int]
    """How many of them have each form: `openai`, `sharegpt`, `langfuse` or `weave`."""
    users: int
    """Users who are named."""
    without_user: int
    """Conversations that name no user. Each counts as a user, and no deletion of a user reaches it."""
    liked: int
    """Conversations that were liked."""
    disliked: int
    """Conversations that were disliked."""
    unrated: int
    """Conversations without an opinion, or with opinions that contradict each other."""


class ShownRow(ResponseModel):
    """A row of a table."""

    line: int
    """Its number in the file, from 1."""
    cells: list[str]
    """The beginning of each cell."""


class ImportedQuestions(ResponseModel):
    """What a table of questions has."""

    form: str
    """How the file was read: its format, and of CSV the encoding and the separator."""
    columns: list[str]
    """Names of the columns."""
    rows: list[ShownRow]
    """The first five rows."""
    question: str | None
    """Column of the questions; null if it is not known, which only a preview accepts."""
    answer: str | None
    """Column of the expected answers; null as above."""
    facts: str | None
    """Column of the facts that the agent reads; null if there is none."""
    near_duplicates: int
    """Questions that are nearly the same as another one with the same answer. Such questions are in one split."""
    different: int
    """Number of questions if those that are nearly the same count once."""
    answers: int
    """Number of different answers. If it is small, the answers are labels: see the setting `extra_words` of the judge
    `reference`."""
    base: str
    """What a base model needs to learn from them."""


class FileImported(ResponseModel):
    """What became of a file."""

    kind: Literal["conversations", "questions"]
    """What it holds."""
    lines: int
    """Lines or rows that are not empty."""
    conversations: ImportedConversations | None
    """About conversations; null for questions."""
    questions: ImportedQuestions | None
    """About questions; null for conversations."""
    problem: str | None
    """Why the file cannot be imported like this; null if it can. Only a preview says it here."""
    demonstrations: ImportedDemonstrations | None
    """What was liked; null if nothing of it was taken, and for questions."""
    tasks: ImportedTasks | None
    """Questions, or what was disliked; null if nothing of it was taken."""
    left_out: list[LeftOut]
    """Why the others were not taken, the most frequent reason first."""
