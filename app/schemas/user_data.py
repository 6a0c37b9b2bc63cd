"""Bodies of the requests and responses about the data of users."""

from pydantic import ConfigDict, Field

from learnloop_service.app.schemas.base import Name, RequestBody, ResponseModel


class UserDeletion(RequestBody):
    """The user whose data is to be deleted."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "customer-4711"}]})

    user: str = Field(min_length=1, max_length=256)
    """Key of the user, as requests named it. It is in the body because paths and headers are in access logs."""
    project: Name | None = None
    """Only what belongs to this project. Default: the project of the API key; all projects for a key of all."""


class UserDeleted(ResponseModel):
    """What was deleted of a user, and what cannot be."""

    deleted: dict[str, int]
    """Number of deleted rows by kind: `sessions`, `asks`, `feedback`, `release_units`, `release_observations`,
    `scenarios` made from sessions, questions and imported conversations, the `rollouts` on them, and `demonstrations`
    made from imported conversations or from the rollouts."""
    trained_checkpoints: list[str]
    """Checkpoints that may have been trained on the user's tasks, also through a checkpoint that they started from, as
    `PROJECT/NAME@STEP`. Weights cannot be cleaned: delete these checkpoints, or train again without the user."""
    unfinished: list[str]
    """Ids of runs and evaluations that still use scenarios or demonstrations of the user, which therefore were not
    deleted. Repeat the request when these have ended."""
    remaining: list[str]
    """Paths of stored sets that may still hold data of the user, such as `/demonstrations/SHA256`: those that all
    projects share, if only one project is asked, and demonstrations from rollouts that were stored by version 0.1.0,
    which name no tasks. `DELETE` on the path deletes one."""


class Consent(RequestBody):
    """Whether something may be trained on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"train": False}]})

    train: bool
    """False withdraws the consent; true gives it."""


class UserConsent(UserDeletion, Consent):
    """Whether what a user was answered may be trained on."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"user": "customer-4711", "train": False}]})


class ConsentOut(ResponseModel):
    """What a changed consent concerned, and what it cannot undo."""

    changed: int
    """Number of sessions and questions that had the other consent."""
    trained_checkpoints: list[str]
    """Checkpoints that may have been trained on the user's tasks or answers, as those of `POST /users/delete`."""
