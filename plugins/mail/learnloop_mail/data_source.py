"""Mail as a source of data for the environment `email_search`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from learnloop_mail.cli.prepare import prepared
from learnloop_service.app.cli.data_sources import DataSource
from learnloop_service.app.cli.terminal import failing_on

if TYPE_CHECKING:  # importing pydantic is slow
    from pydantic import BaseModel

_NAME = "demo-mail"
_QUESTIONS = 1_500
"""Questions made by templates, for all splits together: about 150 of them are test questions."""
_LONGEST_BODY = 4_000
"""Longest email in characters. An agent reads whole emails, and its replies follow them in the same context."""


def _recipe() -> "type[BaseModel]":
    from learnloop_mail.preparation.recipe import Recipe

    return Recipe


def _demo_recipe(emails: Sequence[str]) -> Any:
    from learnloop_mail.preparation.recipe import BadRecipe, read_recipe

    settled = {"name": _NAME, "question_count": _QUESTIONS, "max_body_characters": _LONGEST_BODY, "drop_copies": True}
    with failing_on(BadRecipe):
        return read_recipe(None, {**settled, "emails": list(emails)})


SOURCE = DataSource(
    help="With --base-model: mail to learn from, as `learnloop data prepare --emails` takes it. Can be repeated. "
    "\\[default: invented inboxes]",
    recipe=_recipe,
    demo_recipe=_demo_recipe,
    prepare=prepared,
)
