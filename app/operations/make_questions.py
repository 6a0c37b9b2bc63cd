"""Makes questions about a stored inbox from templates: without a language model, and the same for the same seed."""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import get_args

from app.datasets import inbox_parts, rows
from app.datasets.rows import NewVersion
from app.datasets.store import DatasetStore
from app.db.database import Database
from app.db.tables import DatasetVersion
from app.errors import InvalidRequest
from app.runs import documents
from environment.base import Split
from environment.email_search.inbox import Inbox
from environment.email_search.question_sets import Selection, SplitCounts, question_set, split_by_topic
from environment.email_search.template_questions import TemplateCounts, template_questions
from environment.json_type import Json

_ENVIRONMENT = "email_search"


async def make_questions(
    database: Database, data_dir: Path, inbox: DatasetVersion, namespace: str, count: int, seed: int
) -> DatasetVersion:
    """Make up to `count` questions and store them for the project, under the inbox's name and as about this version of
    it: learn-loops with the inbox then take them. Raises InvalidRequest if a split gets no question."""
    store = DatasetStore(data_dir)
    await inbox_parts.fetch(database, store, inbox.sha256)
    made = await asyncio.to_thread(_made, store.inbox_path(inbox.sha256), count, seed)
    if empty := [split for split in get_args(Split) if not any(row["split"] == split for row in made)]:
        raise InvalidRequest(
            ("path", "name"),
            f"Of its {inbox.size} emails only {len(made)} questions can be made, none for {' and '.join(empty)}. "
            "Upload more mail, or store questions of your own with POST /scenarios.",
        )
    new = documents.document(namespace, "scenarios", made)
    version = NewVersion(
        namespace,
        "scenarios",
        inbox.name,
        str(new.reference["sha256"]),
        len(made),
        environment=_ENVIRONMENT,
        inbox_sha256=inbox.sha256,
        origin={"source": "templates", "count": count, "seed": seed},
    )
    async with database.begin() as tx:
        await documents.save(tx, [new])
        return await rows.add(tx, version)


def _made(path: Path, count: int, seed: int) -> list[dict[str, Json]]:
    with closing(Inbox(path)) as inbox:
        splits = split_by_topic(template_questions(inbox, count, seed, TemplateCounts()))
        return question_set(splits, Selection(), lambda source: inbox.id_of(source) is not None, SplitCounts())
