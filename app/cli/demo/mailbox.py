"""Prepares the mailbox that `learnloop demo --mailbox` names."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from learnloop_service.app.cli.data import prepared
from learnloop_service.app.cli.terminal import Failure, failing_on
from learnloop_service.training.types import RunConfig

if TYPE_CHECKING:
    from learnloop_service.app.datasets.store import Version
    from learnloop_service.app.settings import Settings

_NAME = "demo-mail"
_QUESTIONS = 1_500
"""Questions made by templates, for all splits together: about 150 of them are test questions."""
_LONGEST_BODY = 4_000
"""Longest email in characters. An agent reads whole emails, and its replies follow them in the same context."""


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Prepared mail, or the environment's own inboxes if there is no name."""

    name: str | None
    emails: int | None
    test_questions: int


def mailbox_of(emails: Sequence[str], settings: "Settings") -> Mailbox:
    """Prepare mail as `learnloop data prepare --emails` does; what was made of the same mail before is used again.

    Without mail the environment's own inboxes are used. Raises Failure.
    """
    if not emails:
        return Mailbox(None, None, RunConfig().evaluation.test_scenarios)
    from learnloop_service.app.datasets.recipe import BadRecipe, read_recipe

    settled = {"name": _NAME, "question_count": _QUESTIONS, "max_body_characters": _LONGEST_BODY, "drop_copies": True}
    with failing_on(BadRecipe):
        recipe = read_recipe(None, {**settled, "emails": list(emails)})
    return _of_version(prepared(recipe, settings).version)


def prepared_mailbox(name: str, data_dir: Path) -> Mailbox:
    """Return the newest version of mail that `learnloop data prepare` prepared. Raises Failure."""
    from learnloop_service.app.datasets.store import DatasetStore

    versions = DatasetStore(data_dir).versions(name)
    if not versions:
        raise Failure(f"no prepared data {name!r} in {data_dir}: learnloop data prepare {name} --emails PATH")
    return _of_version(versions[-1])


def _of_version(version: "Version") -> Mailbox:
    if not version.scenarios or not version.scenarios["test"] or not version.scenarios["train"]:
        raise Failure(f"{version.name} has no questions for training or none for the test: it has too few emails")
    return Mailbox(f"{version.name}@{version.version}", version.inbox["emails"], version.scenarios["test"])
