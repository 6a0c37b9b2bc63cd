"""Makes questions about an inbox from templates: without a language model, and the same for the same seed."""

from contextlib import closing
from pathlib import Path

from learnloop_mail.preparation.question_sets import Selection, SplitCounts, question_set, split_by_topic
from learnloop_mail.preparation.template_questions import TemplateCounts, template_questions
from learnloop_service.environment.email_search.inbox import Inbox
from learnloop_service.environment.json_type import Json


def inbox_questions(inbox_file: Path, count: int, seed: int) -> list[dict[str, Json]]:
    """Return up to `count` questions, as scenarios of the environment `email_search`. A split can get none."""
    with closing(Inbox(inbox_file)) as inbox:
        splits = split_by_topic(template_questions(inbox, count, seed, TemplateCounts()))
        return question_set(splits, Selection(), lambda source: inbox.id_of(source) is not None, SplitCounts())
