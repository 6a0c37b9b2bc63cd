"""Body of the response about imported conversations."""

from app.schemas.base import ResponseModel


class LeftOut(ResponseModel):
    """Conversations that were not taken for the same reason."""

    reason: str
    """Why."""
    count: int
    """How many."""
    lines: list[int]
    """Numbers of the first five of them, from 1. In a file that is one JSON list, numbers of its items."""


class ImportedDemonstrations(ResponseModel):
    """The demonstrations: what was liked. Name them in `warm_start.demonstrations.dataset` of a learn-loop."""

    name: str
    """Their name."""
    version: int
    """Their version under this name, from 1."""
    sha256: str
    """Their hash, in hexadecimal."""
    count: int
    """How many."""


class ImportedTasks(ImportedDemonstrations):
    """The tasks: what was disliked. Name them in `environment.config.scenarios` of a learn-loop with `agent`."""

    train: int
    """How many are trained on."""
    validation: int
    """How many are for validation."""
    test: int
    """How many are for the test."""
    judge: str
    """The judge that fits: `reference` if each task has the answer that would have been right, otherwise `ruler`."""


class ConversationsImported(ResponseModel):
    """What became of a file of conversations."""

    lines: int
    """Lines that are not empty."""
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
    demonstrations: ImportedDemonstrations | None
    """What was liked; null if nothing of it was taken."""
    tasks: ImportedTasks | None
    """What was disliked; null if nothing of it was taken."""
    left_out: list[LeftOut]
    """Why the others were not taken, the most frequent reason first."""
